"""A whole layout in one process: every rank of a batch as a virtual rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, ShardingSpec
from loss_ops.batch import GlobalBatch
from loss_ops.checked_program import Checks, checked_program
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.inputs import LossInputs
from loss_ops.loss_program import LossState, gradient_of
from loss_ops.quantities import quantities
from loss_ops.result import GRPOLossResult
from loss_ops.virtual_ranks import Place, run_virtual


@dataclass(frozen=True)
class VirtualOutcome:
    """Per (tp_rank, dp_rank): the result it would return; and the gradient [B, T, V] put together."""

    results: dict[Place, GRPOLossResult]
    gradient: Tensor

    def quantities(self, place: Place = (0, 0)) -> dict[str, Tensor]:
        """The quantities as one rank sees them, with the whole gradient."""
        return quantities(self.results[place], self.gradient)


def run_layout(
    batch: GlobalBatch,
    tp: int,
    dp: int,
    *,
    op: DistributedGRPOLossOp | None = None,
    sequence_bounds: tuple[tuple[int, int], ...] | None = None,
    checks: Checks | None = None,
    contracts: Callable[[ShardingSpec], GRPOLossContract] | None = None,
) -> VirtualOutcome:
    """Forward and backward of every rank of layout tp x dp, in lockstep, with the real ranks' program.

    `sequence_bounds` replaces the even split, `contracts` the batch's contract rank by rank.
    Raises what the ranks would raise.
    """
    used = op or DistributedGRPOLossOp()
    shardings = layout_shardings(batch, tp, dp, sequence_bounds)
    held = contracts or (lambda _sharding: batch.contract)
    programs = {
        (each.tp_rank, each.dp_rank): checked_program(
            replace(batch.shard(each), group_sizes=(tp, dp), contract=held(each)), used.stages, checks or Checks()
        )
        for each in shardings
    }
    with torch.no_grad():
        outcomes = run_virtual(programs)
        gradient = _whole_gradient(batch, outcomes, used)
    results = {place: GRPOLossResult.of(state, state.loss, {}) for place, (_, state) in outcomes.items()}
    return VirtualOutcome(results, gradient)


def layout_shardings(
    batch: GlobalBatch, tp: int, dp: int, sequence_bounds: tuple[tuple[int, int], ...] | None = None
) -> list[ShardingSpec]:
    """Every rank's place in the layout, in rank order."""
    first = ShardingSpec.even(tp, dp, contract=batch.contract)
    if sequence_bounds is not None:
        first = ShardingSpec(**{**first.model_dump(), "sequence_shard_bounds": sequence_bounds})
    places = [{"tp_rank": rank % tp, "dp_rank": rank // tp} for rank in range(tp * dp)]
    return [first.model_copy(update=place) for place in places]  # one set of bounds, checked once


def _whole_gradient(
    batch: GlobalBatch, outcomes: dict[Place, tuple[LossInputs, LossState]], op: DistributedGRPOLossOp
) -> Tensor:
    gradient = torch.empty_like(batch.policy_logits)
    for inputs, state in outcomes.values():
        rows, columns = slice(*inputs.sharding.sequence_shard), slice(*inputs.sharding.vocab_shard)
        target = gradient[rows, :, columns]
        target.copy_(gradient_of(inputs, state, op.stages).view(target.shape))
    return gradient
