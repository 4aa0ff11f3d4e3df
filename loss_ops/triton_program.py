"""The loss as a program of Triton kernels: the same gathers as `staged_program`, few launches between them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from loss_ops.gather import Gather, Program
from loss_ops.inputs import LossInputs
from loss_ops.logprob import packed_sizes
from loss_ops.loss_program import LossState, Observer
from loss_ops.triton_advantages import launch_advantages
from loss_ops.triton_kernel import Pointer
from loss_ops.triton_one_kernel import launch_one_kernel
from loss_ops.triton_plan import Plan, plan_of
from loss_ops.triton_scalars import launch_counts, launch_scalars, launch_weights
from loss_ops.triton_state import TritonState, WrittenGradient
from loss_ops.triton_tiles import launch_row_states
from loss_ops.triton_tokens import launch_merge, launch_tokens
from loss_ops.triton_workspace import Workspace

Write = Literal["backward", "forward", "inplace"]


def triton_program(
    inputs: LossInputs,
    *,
    grad_scale: float = 1.0,
    observe: Observer | None = None,
    write: Write = "backward",
    wait: bool = True,
) -> Program[LossState]:
    """Forward of one rank; with `write` other than "backward" the gradient too.

    Gathers rewards over DP, tile states over TP, sequence totals over DP, and, for a gradient written by the
    one-kernel path, the sequences' token counts over DP before the logits are read. An axis of degree 1 needs no
    gather and makes no request.
    """
    plan = plan_of(inputs.contract, inputs.sharding, inputs.policy_logits_NV.device)
    space = Workspace(plan.workspace_layout(1 if inputs.ref_logits_NV is None else 2), plan.device)
    rewards_B = yield from _joined(inputs.rewards_S.float(), plan, "rewards")
    target = None if write == "backward" else gradient_target(inputs, inplace=write == "inplace")
    whole = len(plan.shard.tiles) == 1
    if target is not None and whole:
        yield from _one_kernel(rewards_B, inputs, plan, space, target, grad_scale)
    else:
        yield from _states(inputs, plan, space)
    observed = None if observe is None else space.floats.new_empty((3, space.layout.slots))
    launch_tokens(rewards_B, inputs, plan, space, observed)
    totals_B7 = yield from _totals(plan, space)
    launch_scalars(space.part("totals") if totals_B7 is None else totals_B7, rewards_B, plan, space, grad_scale)
    written = WrittenGradient(inputs, plan, space, target, inplace=write == "inplace", wait=wait)
    if target is not None and not whole:
        written.write()
    state = TritonState(space, totals_B7, written)
    if observe is not None and observed is not None:
        _show(state, observed, inputs, observe)
    return state


def gradient_target(inputs: LossInputs, *, inplace: bool) -> Tensor:
    """[N, V] where the gradient goes: fresh memory, or the policy logits."""
    logits = inputs.policy_logits_NV
    return logits if inplace else torch.empty_like(logits, memory_format=torch.contiguous_format)


def _joined(tensor: Tensor, plan: Plan, purpose: str) -> Program[Tensor]:
    """All DP ranks' parts in rank order."""
    if len(plan.sequence_sizes) == 1:
        return tensor
    return torch.cat((yield Gather("dp", tensor, plan.sequence_sizes, purpose)))


def _totals(plan: Plan, space: Workspace) -> Program[Tensor | None]:
    """[B, 7] the batch's totals; None where this rank's are all of them."""
    if len(plan.sequence_sizes) == 1:
        return None
    return (yield from _joined(space.tensor("totals", -1, 7), plan, "sequence totals"))


def _states(inputs: LossInputs, plan: Plan, space: Workspace) -> Program[None]:
    """Joined states; at TP 1 the kernel that reads a row joins its tiles, in order."""
    policy, reference = inputs.policy_logits_NV, inputs.ref_logits_NV
    models = [policy] if reference is None else [policy, reference]
    whole = len(plan.shard.tiles) == 1
    out: Pointer = space.part("states")
    if not whole:
        out = space.floats.new_empty((len(models) * (2 * plan.shard.num_tiles + 1), space.layout.slots))
    launch_row_states(
        models, inputs.action_ids_ST, inputs.active_ST, plan.shard, plan.inverse_temperature, out, merged=whole
    )
    if isinstance(out, Tensor):
        sizes = packed_sizes(plan.shard, len(models))
        launch_merge((yield Gather("tp", out, sizes, "tile statistics")), inputs, plan, space)


def _one_kernel(
    rewards_B: Tensor, inputs: LossInputs, plan: Plan, space: Workspace, target: Tensor, grad_scale: float
) -> Program[None]:
    """Advantages and weights first, then everything that needs the logits in one launch."""
    launch_advantages(rewards_B, plan, space.part("advantages"))
    launch_counts(inputs, space.part("counts"))
    counts: Pointer = space.part("counts")
    if len(plan.sequence_sizes) > 1:
        counts = yield from _joined(space.tensor("counts", -1), plan, "token counts")
    launch_weights(counts, plan, space)
    launch_one_kernel(inputs, plan, space, target, grad_scale)


def _show(state: TritonState, observed_3N: Tensor, inputs: LossInputs, observe: Observer) -> None:
    rows = (state.softmax_N.logp_N, *observed_3N.unbind())
    for name, row in zip(("logp", "ratio", "kl", "policy"), rows, strict=True):
        observe(name, row.view(inputs.active_ST.shape))
