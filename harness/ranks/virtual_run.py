"""A case with virtual ranks: every rank of the layout in this process, each compared with the baseline."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, InputError, Problem, ShardingSpec
from harness.comparing.comparison import compare
from harness.comparing.frame import Frame
from harness.comparing.ulp import raw_bits
from harness.own_ops.ops import LossOp
from harness.ranks.candidate import origin_of
from harness.ranks.rank_outcome import RankOutcome
from loss_ops.batch import GlobalBatch
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.quantities import GRADIENT, REPLICATED, quantities
from loss_ops.virtual_layout import VirtualOutcome, layout_shardings, run_layout

Quantities = dict[str, Tensor]
Layout = tuple[int, int]


def run_virtual_case(
    op: LossOp,
    batch: GlobalBatch,
    layout: Layout,
    expected: Quantities,
    contracts: Callable[[ShardingSpec], GRPOLossContract] | None = None,
    repeat: int = 1,
) -> list[RankOutcome]:
    """Run the layout and report: one rank alone when all agree with `expected`, else every rank.

    `contracts` gives each rank's contract, for a planted disagreement. Of `repeat` runs the first that differs
    is reported, else the last.

    Raises what the ranks raise, and InputError for an op that brings its own collectives.
    """
    if not isinstance(op, DistributedGRPOLossOp):
        got = f"a {type(op).__name__}"
        raise InputError(Problem("input.op", "--virtual", "an op that virtual ranks can drive", got))
    for run in range(repeat):
        outcomes = _compared(op, batch, layout, expected, contracts)
        if len(outcomes) > 1 or run == repeat - 1:
            break
    return outcomes


def _compared(
    op: DistributedGRPOLossOp,
    batch: GlobalBatch,
    layout: Layout,
    expected: Quantities,
    contracts: Callable[[ShardingSpec], GRPOLossContract] | None,
) -> list[RankOutcome]:
    outcome = run_layout(batch, *layout, op=op, contracts=contracts)
    shardings = layout_shardings(batch, *layout)
    differing = [each for each in shardings if _differs(expected, outcome, each)]
    if not differing and _same(expected[GRADIENT], outcome.gradient):
        alone = ShardingSpec.even(1, 1, contract=batch.contract)
        return [_outcome(expected, outcome, shardings[0], alone)]
    frame = Frame.of(batch, expected, shardings[0].sequence_shard_bounds)
    return [_outcome(expected, outcome, each, each, frame) for each in shardings]


def _differs(expected: Quantities, outcome: VirtualOutcome, sharding: ShardingSpec) -> bool:
    seen = quantities(outcome.results[sharding.tp_rank, sharding.dp_rank], outcome.gradient)
    return not all(_same(expected[name], seen[name]) for name in REPLICATED)


def _same(expected: Tensor, got: Tensor) -> bool:
    return torch.equal(raw_bits(expected), raw_bits(got))


def _outcome(
    expected: Quantities,
    outcome: VirtualOutcome,
    place: ShardingSpec,
    part: ShardingSpec,
    frame: Frame | None = None,
) -> RankOutcome:
    """One rank's report; `part` says which shard of the gradient it answers for."""
    rows, columns = slice(*part.sequence_shard), slice(*part.vocab_shard)
    seen = quantities(outcome.results[place.tp_rank, place.dp_rank], outcome.gradient[rows, :, columns])
    wanted = {**expected, GRADIENT: expected[GRADIENT][rows, :, columns]}
    drifts = [
        compare(name, wanted[name], value, origin_of(name, value, part), sharded=name == GRADIENT, frame=frame)
        for name, value in seen.items()
    ]
    return RankOutcome(tp_rank=place.tp_rank, dp_rank=place.dp_rank, drifts=tuple(drifts))
