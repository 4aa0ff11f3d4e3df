"""One forward and backward of an op on one rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from grpo_contract import GRPOLossContract, InputError, Problem, ShardingSpec
from harness.launching.status import Phase, StatusWriter
from harness.own_ops.ops import (
    LossOp,
    is_of_our_class,
    loss_of,
    not_plain,
    own_copies,
    quantities_of,
    shows_stages,
    stages_of,
    unknown_keys,
)
from harness.ranks.own_inputs import overwritten, own_copy
from loss_ops.batch import GlobalBatch
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.loss_call import LossCall
from loss_ops.preflight import preflight
from loss_ops.quantities import GRADIENT, quantities
from loss_ops.real_ranks import RealRanks
from loss_ops.result import GRPOLossResult

BY_SEQUENCE = ("per_sequence_policy", "per_sequence_kl", "per_sequence_active_tokens", "advantages")


@dataclass(frozen=True)
class Groups:
    """This rank's process groups in one layout; None on an axis of degree 1.

    `world` is what a foreign op is called in: a world of this layout's ranks alone.
    """

    tp: dist.ProcessGroup | None = None
    dp: dist.ProcessGroup | None = None
    world: Callable[[], AbstractContextManager[None]] = nullcontext


NO_GROUPS = Groups()


def run_candidate(
    op: LossOp,
    batch: GlobalBatch,
    sharding: ShardingSpec,
    groups: Groups,
    status: StatusWriter | None = None,
    contract: GRPOLossContract | None = None,
    observe: Callable[[str, Tensor], None] | None = None,
    notes: list[str] | None = None,
) -> dict[str, Tensor]:
    """The quantities of this rank: replicated vectors of the whole batch, and its shard of the gradient.

    `contract` replaces the batch's own on this rank, for a planted disagreement. `observe` sees the op's stages
    where it shows them, `notes` is told which inputs a foreign op has overwritten.
    """
    call = given = batch.shard(sharding)
    if not is_of_our_class(op):
        _report(status, Phase.PREFLIGHT)
        _preflight(replace(call, contract=contract or batch.contract), groups)  # ours does this itself
        call = own_copy(call)
    logits = call.policy_local_logits.detach().requires_grad_()
    with nullcontext() if is_of_our_class(op) else groups.world():
        _report(status, Phase.FORWARD)
        result = op.apply(
            logits,
            call.action_ids,
            call.old_logps,
            call.rewards,
            contract=contract or batch.contract,
            sharding=sharding,
            completion_mask=call.completion_mask,
            ref_local_logits=call.ref_local_logits,
            tp_group=groups.tp,
            dp_group=groups.dp,
            **({"observe": observe} if observe and shows_stages(op) else {}),
        )
        if observe is not None:
            for name, stage in stages_of(result).items():
                observe(name, stage)
        _report(status, Phase.BACKWARD)
        gradient = _backward(result, logits)
    if notes is not None and call is not given:
        notes += [*overwritten(given, call), *unknown_keys(result)]
    if not isinstance(result, GRPOLossResult):
        return quantities_of(result, gradient)
    found = quantities(result, gradient)
    return found if type(op) is DistributedGRPOLossOp else own_copies(found)


def _preflight(call: LossCall, groups: Groups) -> None:
    """Raise, on every rank alike, where ranks disagree or a rank's call is wrong."""
    sizes = tuple(None if group is None else group.size() for group in (groups.tp, groups.dp))
    grouped = replace(call, group_sizes=(sizes[0], sizes[1]))
    problems = grouped.structure_problems() or grouped.value_problems()
    degrees = (sizes[0] or 1, sizes[1] or 1)
    RealRanks(groups.tp, groups.dp).run(preflight(grouped, "foreign", problems, 1.0, degrees))


def _report(status: StatusWriter | None, phase: Phase) -> None:
    if status is not None:
        status.update(phase=phase)


def _backward(result: Any, logits: Tensor) -> Tensor:
    loss = loss_of(result)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        got = f"{type(result).__name__} with loss {_described(loss)}"
        raise InputError(Problem("input.result", "the op's result", "a scalar `loss` that has a gradient", got))
    if problems := not_plain({"loss": loss}):
        raise InputError(problems)
    (gradient,) = torch.autograd.grad(loss, logits)
    return gradient


def _described(loss: Any) -> str:
    """A tensor by its form: the values of some cannot be printed."""
    if not isinstance(loss, Tensor):
        return repr(loss)
    gradient = "with a gradient" if loss.requires_grad else "without a gradient"
    return f"of shape {list(loss.shape)} and {loss.dtype} on {loss.device}, {gradient}"


def holds_part(name: str, got: Tensor, sharding: ShardingSpec) -> bool:
    """Whether a foreign op returned only its own sequences of a per-sequence vector."""
    num_sequences = sharding.sequence_shard_bounds[-1][1]
    if name not in BY_SEQUENCE:
        return False
    return got.dim() == 1 and got.shape[0] == sharding.num_local_sequences != num_sequences


def is_part(name: str, got: Tensor, sharding: ShardingSpec) -> bool:
    """Whether this rank holds a part of the quantity, not a copy of the whole."""
    return name == GRADIENT or holds_part(name, got, sharding)


def origin_of(name: str, got: Tensor, sharding: ShardingSpec) -> tuple[int, ...]:
    """Global index of element 0 of a quantity as this rank holds it."""
    if name == GRADIENT:
        return (sharding.sequence_shard[0], 0, sharding.vocab_shard[0])
    return (sharding.sequence_shard[0],) if holds_part(name, got, sharding) else (0,) * got.dim()


def baseline_part(name: str, whole: Tensor, got: Tensor, sharding: ShardingSpec) -> Tensor:
    """What this rank's copy of a quantity must equal: its shard of the gradient or vector, or the whole."""
    rows = slice(*sharding.sequence_shard)
    if name == GRADIENT:
        return whole[rows, :, slice(*sharding.vocab_shard)]
    return whole[rows] if holds_part(name, got, sharding) else whole
