"""An op that works whole layouts through in this process, layout by layout."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from grpo_contract import InputError, Problem
from harness.own_ops.ops import is_ours
from harness.planning.planned import PlannedCase
from harness.ranks.own_inputs import overwritten, own_copy
from harness.ranks.rank_outcome import RankOutcome, have_drifted
from harness.ranks.sensitivity import disturb
from harness.ranks.stage_run import with_virtual_stages
from harness.ranks.virtual_run import run_virtual_case
from harness.ranks.whole_result import known_quantities, outcomes_of, unknown_quantities
from loss_ops.batch import GlobalBatch
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.virtual_layout import run_layout

Emulation = Callable[[GlobalBatch, int, int], Mapping[str, Tensor]]
OWN_ARGUMENTS = {"contract", "sharding", "tp_group", "dp_group"}
Runner = Callable[[PlannedCase], list[RankOutcome]]


def runner_of(op: Any, batch: GlobalBatch, name: str | None = None) -> Runner:
    """What runs one case of `op` on `batch`. Raises InputError for an op that needs real ranks."""
    if isinstance(op, DistributedGRPOLossOp):
        return _virtual(op, batch)
    if hasattr(op, "apply") or not callable(op) or _takes_groups(op):
        expected = "one of our ops, or a function of (batch, tp, dp) that works a whole layout through by itself"
        got = f"{name or op!r}, which needs real ranks: launch it with grpo-verify --op package.module:attribute"
        raise InputError(Problem("input.op", "op", expected, got))
    return _emulated(op, batch)


def _takes_groups(function: Callable[..., Any]) -> bool:
    try:
        return bool(OWN_ARGUMENTS & inspect.signature(function).parameters.keys())
    except (TypeError, ValueError):
        return False


def alone_of(op: Any) -> Callable[[GlobalBatch], Mapping[str, Tensor]]:
    """What gives the quantities of `op` at 1x1."""
    if isinstance(op, DistributedGRPOLossOp):
        return lambda batch: run_layout(batch, 1, 1, op=op).quantities()
    return lambda batch: _called(op, batch, (1, 1), [])


def _virtual(op: DistributedGRPOLossOp, batch: GlobalBatch) -> Runner:
    expected = run_layout(batch, 1, 1, op=op).quantities()
    if not is_ours(op):
        disturb(alone_of(op), batch)

    def run(case: PlannedCase) -> list[RankOutcome]:
        outcomes = run_virtual_case(op, batch, case.layout, expected, repeat=case.repeat)
        return with_virtual_stages(outcomes, op, batch, case.layout)

    return run


def _emulated(op: Emulation, batch: GlobalBatch) -> Runner:
    alone = alone_of(op)
    expected = dict(alone(batch))
    disturb(alone, batch)

    def run(case: PlannedCase) -> list[RankOutcome]:
        notes: list[str] = []
        tries = [_called(op, batch, case.layout, notes) for _ in range(case.repeat)]
        found = [outcomes_of(expected, each, batch, case.layout) for each in tries]
        told = next((each for each in found if have_drifted(each)), found[0])
        return [each.model_copy(update={"notes": tuple(dict.fromkeys(notes))}) for each in told]

    return run


def _called(op: Emulation, batch: GlobalBatch, layout: tuple[int, int], notes: list[str]) -> dict[str, Tensor]:
    """What `op` gives for a copy of `batch`; `notes` is told of overwritten inputs and of what is not compared."""
    own = own_copy(batch)
    result = op(own, *layout)
    notes += [*overwritten(batch, own), *unknown_quantities(result)]
    return known_quantities(result, batch)
