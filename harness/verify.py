"""`verify_loss`: layouts verified in this process, on live tensors, for a trainer's own tests."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_contract import GRPOVerifyError, ShardingSpec
from harness.own_ops.ops import OWN, is_ours, launch_of, resolve
from harness.planning.planned import PlannedCase
from harness.ranks.case_result import case_result
from harness.ranks.environment import environment
from harness.ranks.given_batch import batch_of
from harness.ranks.layout_runner import Runner, alone_of, runner_of
from harness.ranks.power import measure_power, power_of_foreign
from harness.ranks.rank_outcome import RankOutcome
from harness.settings.verify_arguments import checked_layouts
from loss_ops.batch import GlobalBatch
from reports import CaseResult, Report

Layout = tuple[int, int]
DEFAULT_LAYOUTS: tuple[Layout, ...] = ((1, 2), (2, 1), (2, 2))


def verify_loss(
    op: Any = OWN,
    batch: GlobalBatch | str | Path = "seed",
    layouts: Sequence[Layout | str] = DEFAULT_LAYOUTS,
    *,
    repeat: int = 2,
    seed: int = 0,
) -> Report:
    """Compare `op` at every layout with itself at 1x1, bit for bit; the report's `exit_status` is 0 when proven.

    `op` is one of ours, by name or as a DistributedGRPOLossOp, which virtual ranks drive; or a function
    `op(batch, tp, dp)` that works a whole layout through by itself and returns quantities by name, the gradient
    `grad_policy_logits` [B, T, V] among them. An op that calls torch.distributed cannot be run in one process:
    launch it with `grpo-verify --op package.module:attribute`. `batch` is live tensors, a built-in name or a
    capture file; layouts are (tp, dp) or "2x1". Deterministic; draws nothing.

    Raises InputError for arguments, an op or a result that cannot be used, all wrong arguments at once, and
    ContractError for a layout that the batch cannot fill.
    """
    chosen = checked_layouts(layouts, repeat, seed)
    held = batch_of(batch, seed)
    name = op if isinstance(op, str) else getattr(op, "__name__", type(op).__name__)
    found = resolve(op, None, held.contract, held.policy_logits.device.type) if isinstance(op, str) else op
    runner, launch = runner_of(found, held, name), launch_of(found)
    label, drawn = ("live tensors", None) if isinstance(batch, GlobalBatch) else (str(batch), seed)
    power = _power(found, held)
    planned = _planned(chosen, op=name, batch=label, seed=drawn, repeat=repeat)
    cases = [_case(runner, held, case, power) for case in planned]
    return Report.assemble(
        cases=cases,
        command=("verify_loss", name),
        environment=environment(held.policy_logits.device, launch),
        contract=held.contract.model_dump(mode="json"),
        numeric_fingerprint=held.contract.numeric_fingerprint(launch),
    )


def _planned(layouts: Sequence[Layout], **fields: Any) -> list[PlannedCase]:
    return [
        PlannedCase(
            index=index,
            name=f"layout {tp}x{dp}",
            layout=(tp, dp),
            # 1x1 is the baseline itself: it shows that runs repeat, and must not make a report green.
            expect="any" if (tp, dp) == (1, 1) else "match",
            **fields,
        )
        for index, (tp, dp) in enumerate(layouts)
    ]


def _power(op: Any, batch: GlobalBatch) -> dict[str, float]:
    if is_ours(op):
        return measure_power(batch)
    alone = alone_of(op)
    return power_of_foreign(batch, alone(batch), alone)


def _case(runner: Runner, batch: GlobalBatch, case: PlannedCase, power: Mapping[str, float]) -> CaseResult:
    started = time.perf_counter()
    ShardingSpec.even(*case.layout, contract=batch.contract)  # raises for a layout that the batch cannot fill
    try:
        outcomes = runner(case)
    except GRPOVerifyError as error:
        outcomes = [RankOutcome(tp_rank=0, dp_rank=0, error=(error.code, str(error)))]
    spent = time.perf_counter() - started
    timed = [each.model_copy(update={"seconds": spent}) for each in outcomes]
    return case_result(case, timed, transport="virtual ranks", power={} if timed[0].error else power)
