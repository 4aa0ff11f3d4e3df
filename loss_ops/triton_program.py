"""The loss as a program of Triton kernels: the same gathers as `loss_program`, few launches between them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from loss_ops.gather import Gather, Program
from loss_ops.inputs import LossInputs
from loss_ops.logprob import Logprobs, packed_sizes
from loss_ops.loss_program import LossState, Observer
from loss_ops.scalars import Scalars
from loss_ops.sequence_totals import SequenceTotals
from loss_ops.triton_advantages import launch_advantages
from loss_ops.triton_one_kernel import launch_one_kernel
from loss_ops.triton_plan import Plan, plan_of
from loss_ops.triton_scalars import BatchScalars, launch_counts, launch_scalars, launch_weights
from loss_ops.triton_tiles import launch_row_states
from loss_ops.triton_tokens import TokenOutputs, launch_merge, launch_tokens
from loss_ops.triton_written import WrittenGradient

Write = Literal["backward", "forward", "inplace"]


def triton_program(
    inputs: LossInputs,
    *,
    grad_scale: float = 1.0,
    observe: Observer | None = None,
    write: Write = "backward",
) -> Program[LossState]:
    """Forward of one rank; with `write` other than "backward" the gradient too.

    Gathers rewards over DP, tile states over TP (none at TP 1), sequence totals over DP, and, for a gradient
    written by the one-kernel path, the sequences' token counts over DP before the logits are read.
    """
    plan = plan_of(inputs.contract, inputs.sharding, inputs.policy_logits_NV.device)
    advantages_B = launch_advantages((yield from _joined(inputs.rewards_S, plan, "rewards")), plan)
    target = None if write == "backward" else gradient_target(inputs, inplace=write == "inplace")
    one_kernel = target is not None and len(plan.shard.tiles) == 1
    if target is not None and one_kernel:
        weights_B = launch_weights((yield from _joined(launch_counts(inputs), plan, "token counts")), plan)
        states = launch_one_kernel(inputs, plan, advantages_B, weights_B, target, grad_scale)
    else:
        states = yield from _states(inputs, plan)
    tokens = launch_tokens(states, advantages_B, inputs, plan, observed=observe is not None)
    totals_B7 = yield from _joined(tokens.totals_S7, plan, "sequence totals")
    scalars = launch_scalars(totals_B7, tokens.slots_4N, inputs, plan, grad_scale)
    if observe is not None:
        _show(tokens, inputs, observe)
    state = _state(scalars, totals_B7, advantages_B, tokens)
    if target is None:
        return state
    written = WrittenGradient(inputs, state.coefficient_N, state.softmax_N, target, inplace=write == "inplace")
    if not one_kernel:
        written.write()
    return state.with_written(written)


def gradient_target(inputs: LossInputs, *, inplace: bool) -> Tensor:
    """[N, V] where the gradient goes: fresh memory, or the policy logits."""
    logits = inputs.policy_logits_NV
    return logits if inplace else torch.empty_like(logits, memory_format=torch.contiguous_format)


def _joined(tensor: Tensor, plan: Plan, purpose: str) -> Program[Tensor]:
    """All ranks' parts in rank order; one rank's is passed on as it is."""
    gathered = yield Gather("dp", tensor, plan.sequence_sizes, purpose)
    return gathered[0] if len(gathered) == 1 else torch.cat(gathered)


def _states(inputs: LossInputs, plan: Plan) -> Program[Tensor]:
    """[models * 3, N] joined states; at TP 1 the kernel that reads a row joins its tiles, in order."""
    policy, reference = inputs.policy_logits_NV, inputs.ref_logits_NV
    models = [policy] if reference is None else [policy, reference]
    slots, whole = inputs.slots, len(plan.shard.tiles) == 1
    packed = launch_row_states(
        models, slots.action_ids_N, slots.active_N, plan.shard, slots.temperature, merged=whole
    )
    if whole:
        yield Gather("tp", packed, (packed.shape[0],), "tile statistics")
        return packed
    gathered = yield Gather("tp", packed, packed_sizes(plan.shard, len(models)), "tile statistics")
    return launch_merge(gathered, inputs, plan, len(models))


def _state(scalars: BatchScalars, totals_B7: Tensor, advantages_B: Tensor, tokens: TokenOutputs) -> LossState:
    loss, policy_loss, kl = scalars.floats[:3].unbind()
    logp, largest, log_sum, _ = tokens.slots_4N.unbind()
    _, _, *counts = totals_B7.unbind(dim=1)
    return LossState(
        Scalars(policy_loss, kl, scalars.by_sequence(2)),
        loss,
        SequenceTotals(scalars.by_sequence(0), scalars.by_sequence(1), *counts),
        advantages_B,
        Logprobs(logp, largest, log_sum),
        scalars.coefficient_N,
        clip_counts_4=scalars.counts_4,
    )


def _show(tokens: TokenOutputs, inputs: LossInputs, observe: Observer) -> None:
    assert tokens.observed_3N is not None
    rows = (tokens.slots_4N[0], *tokens.observed_3N.unbind())
    for name, row in zip(("logp", "ratio", "kl", "policy"), rows, strict=True):
        observe(name, row.view(inputs.active_ST.shape))
