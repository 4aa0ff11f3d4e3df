"""`verify_loss`: layouts verified in this process, on live tensors, for a trainer's own tests."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from grpo_contract import GRPOVerifyError, InputError, Problem, ShardingSpec
from harness.comparing.frame import Frame
from harness.inputs.capture_contract import capture_contract
from harness.inputs.capture_header import read_header
from harness.own_ops.ops import OWN, launch_of, quantities_of, resolve
from harness.planning.planned import PlannedCase
from harness.ranks.batches import built_in, captured
from harness.ranks.candidate import BY_SEQUENCE
from harness.ranks.case_result import case_result
from harness.ranks.environment import environment
from harness.ranks.power import measure_power, power_of_foreign
from harness.ranks.rank_comparison import compare_rank
from harness.ranks.rank_outcome import RankOutcome
from harness.ranks.sensitivity import disturb
from harness.ranks.stage_run import with_virtual_stages
from harness.ranks.virtual_run import run_virtual_case
from harness.settings.batch_spec import BUILT_IN, contract_for
from harness.settings.run_config import RunConfig
from harness.settings.verify_arguments import checked_layouts
from loss_ops.batch import GlobalBatch
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.quantities import GRADIENT, REPLICATED
from loss_ops.virtual_layout import layout_shardings, run_layout
from reports import CaseResult, Report

Layout = tuple[int, int]
Quantities = dict[str, Tensor]
Emulation = Callable[[GlobalBatch, int, int], Mapping[str, Tensor]]
DEFAULT_LAYOUTS: tuple[Layout, ...] = ((1, 2), (2, 1), (2, 2))
OWN_ARGUMENTS = {"contract", "sharding", "tp_group", "dp_group"}


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
    runner, launch = _runner(found, held, name), launch_of(found)
    label, drawn = ("live tensors", None) if isinstance(batch, GlobalBatch) else (str(batch), seed)
    planned = [
        PlannedCase(
            index=index,
            name=f"layout {tp}x{dp}",
            op=name,
            layout=(tp, dp),
            batch=label,
            seed=drawn,
            # 1x1 is the baseline itself: it shows that runs repeat, and must not make a report green.
            expect="any" if (tp, dp) == (1, 1) else "match",
            repeat=repeat,
        )
        for index, (tp, dp) in enumerate(chosen)
    ]
    power = _power(found, held)
    cases = [_case(runner, held, case, power) for case in planned]
    return Report.assemble(
        cases=cases,
        command=("verify_loss", name),
        environment=environment(held.policy_logits.device, launch),
        contract=held.contract.model_dump(mode="json"),
        numeric_fingerprint=held.contract.numeric_fingerprint(launch),
    )


def _power(op: Any, batch: GlobalBatch) -> dict[str, float]:
    if isinstance(op, DistributedGRPOLossOp):
        return measure_power(batch)
    alone = lambda given: _known(op(given, 1, 1), given)  # noqa: E731
    return power_of_foreign(batch, alone(batch), alone)


Runner = Callable[[PlannedCase], list[RankOutcome]]


def _runner(op: Any, batch: GlobalBatch, name: str | None = None) -> Runner:
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


def _virtual(op: DistributedGRPOLossOp, batch: GlobalBatch) -> Runner:
    expected = run_layout(batch, 1, 1, op=op).quantities()

    def run(case: PlannedCase) -> list[RankOutcome]:
        outcomes = run_virtual_case(op, batch, case.layout, expected, repeat=case.repeat)
        return with_virtual_stages(outcomes, op, batch, case.layout)

    return run


def _emulated(op: Emulation, batch: GlobalBatch) -> Runner:
    expected = _known(op(batch, 1, 1), batch)
    disturb(lambda moved: op(moved, 1, 1), batch)

    def run(case: PlannedCase) -> list[RankOutcome]:
        tries = [_known(op(batch, *case.layout), batch) for _ in range(case.repeat)]
        found = [outcomes_of(expected, each, batch, case.layout) for each in tries]
        return next((each for each in found if any(d.mismatched for o in each for d in o.drifts)), found[0])

    return run


def _known(quantities: Mapping[str, Tensor], batch: GlobalBatch) -> Quantities:
    if not isinstance(quantities, Mapping):
        got = type(quantities).__name__
        raise InputError(Problem("input.result", "the op's result", "a mapping of quantities", got))
    named = quantities_of({name: quantities.get(name) for name in REPLICATED}, batch.policy_logits[:0])
    known = {name: named[name] for name in REPLICATED if name in named}
    gradient = quantities.get(GRADIENT)
    if gradient is not None and not isinstance(gradient, Tensor):
        expected, got = "a tensor, which can be compared", type(gradient).__name__
        raise InputError(Problem("input.result", f"the op's {GRADIENT}", expected, got))
    if gradient is not None:
        known[GRADIENT] = gradient.detach().clone()
    _check_shapes(known, batch)
    if not known:
        expected = f"some of {', '.join((*REPLICATED, GRADIENT))}"
        raise InputError(Problem("input.result", "the op's result", expected, ", ".join(quantities) or "nothing"))
    return known


def _check_shapes(known: Quantities, batch: GlobalBatch) -> None:
    """A whole layout's quantities are whole: what is larger or smaller would be compared in part."""
    sequences = (len(batch.rewards),)
    shapes = {**dict.fromkeys(BY_SEQUENCE, sequences), GRADIENT: tuple(batch.policy_logits.shape)}
    wrong = {name: value for name, value in known.items() if tuple(value.shape) != shapes.get(name, value.shape)}
    if wrong:
        raise InputError(
            [
                Problem("input.result", f"the op's {name}", f"shape {list(shapes[name])}", f"{list(value.shape)}")
                for name, value in wrong.items()
            ]
        )


def outcomes_of(expected: Quantities, got: Quantities, batch: GlobalBatch, layout: Layout) -> list[RankOutcome]:
    """What each rank of a layout would report of whole quantities: its shard of the gradient, and the rest."""
    if expected.keys() != got.keys():
        raise InputError(Problem("input.result", "the op's result", f"{', '.join(expected)}, as at 1x1",
                                 ", ".join(got)))  # fmt: skip
    places = layout_shardings(batch, *layout)
    frame = Frame.of(batch, expected, places[0].sequence_shard_bounds)
    return [_outcome(expected, got, each, frame) for each in places]


def _outcome(expected: Quantities, got: Quantities, place: ShardingSpec, frame: Frame) -> RankOutcome:
    shard = (slice(*place.sequence_shard), slice(None), slice(*place.vocab_shard))
    parts = {name: value[shard] if name == GRADIENT else value for name, value in got.items()}
    drifts = compare_rank(expected, parts, place, frame)
    return RankOutcome(tp_rank=place.tp_rank, dp_rank=place.dp_rank, drifts=drifts)


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


def batch_of(batch: GlobalBatch | str | Path, seed: int = 0, config: RunConfig | None = None) -> GlobalBatch:
    """Live tensors as they are, the built-in batch of a name, or the batch of a capture file, on the CPU.

    Raises InputError for a name that is neither, and for anything else.
    """
    if isinstance(batch, GlobalBatch):
        return replace(batch, policy_logits=batch.policy_logits.detach())
    if not isinstance(batch, str | Path):
        expected, got = "a GlobalBatch, a built-in name or a capture file", repr(batch)
        raise InputError(Problem("input.batch", "batch", expected, got))
    settings = config or RunConfig()
    if str(batch) in BUILT_IN:
        spec = BUILT_IN[str(batch)]
        return built_in(spec, seed, contract_for(spec, settings))
    if Path(batch).suffix != ".safetensors":
        expected = f"one of {', '.join(BUILT_IN)}, or a file ending in .safetensors"
        raise InputError(Problem("input.batch", "batch", expected, str(batch)))
    contract, _ = capture_contract(read_header(Path(batch)), settings)
    return captured(Path(batch), contract)
