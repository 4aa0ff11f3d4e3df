"""Plain lists: settings, ops, and the plan of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from harness.planning.planned import BatchPlan, Plan, PlannedCase
from harness.settings.run_config import RunConfig


def settings_text(config: RunConfig) -> str:
    """Every setting with its value and where it came from, as columns, or as JSON in that format."""
    rows = {
        name: (value, config.where(name) if config.is_given(name) else "default")
        for name, value in config.model_dump(mode="json").items()
    }
    if config.formats[0] == "json":
        content = {name: {"value": value, "source": source} for name, (value, source) in rows.items()}
        return json.dumps(content, indent=2) + "\n"
    return _columns([(name, _shown(value), source) for name, (value, source) in rows.items()])


def ops_text(rows: Iterable[Mapping[str, str]]) -> str:
    """Ops and backends as the registry describes them; `status` is `available` or the reason why not.

    What --op takes is told apart from what only Python code can ask the registry for.
    """
    from harness.planning.planned_cases import FAULTED_OP  # on demand: it builds a contract
    from loss_ops.registry import LOSS_OP

    found = list(rows)
    names = [(f"--op {row['backend']}", _state(row["status"]), "") for row in found if row["op"] == LOSS_OP]
    others = [(row["op"], row["backend"], _state(row["status"])) for row in found if row["op"] != LOSS_OP]
    first = (f"--op {FAULTED_OP}", "the first of these that is available", "")
    head = "In Python alone, as kernel_registry.get_op(NAME, BACKEND):\n"
    return f"{_columns([first, *names])}\n{head}{_columns(others)}"


def plan_text(plan: Plan) -> str:
    """What would run, case by case, with what is skipped and why; the batches and their sizes first."""
    head = f"{_counted(plan.ranks, 'rank')} on {plan.device} over {plan.transport}, op {plan.op}\n"
    batches = [(name, _sizes(batch), "; ".join(batch.notes)) for name, batch in plan.batches.items()]
    cases = [(case.name, f"expects {case.expect}", _fate(case)) for case in plan.cases]
    count = sum(case.skip is None for case in plan.cases)
    tail = f"{_counted(count, 'case')} to run, {len(plan.cases) - count} skipped\n"
    notes = "".join(f"note: {note}\n" for note in plan.notes)
    return "\n".join([head, _columns(batches), _columns(cases), tail + notes])


def _sizes(batch: BatchPlan) -> str:
    geometry, logprob = batch.contract.geometry, batch.contract.logprob
    slots = f"{geometry.num_sequences} x {geometry.padded_seq_len} slots"
    return f"{slots}, vocabulary {logprob.real_vocab_size} in {logprob.num_vocab_tiles} tiles"


def _fate(case: PlannedCase) -> str:
    return _counted(case.ranks, "rank") if case.skip is None else f"skipped: {case.skip}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _state(status: str) -> str:
    return status if status == "available" else f"not available: {status}"


def _columns(rows: list[tuple[str, str, str]]) -> str:
    widths = [max((len(row[index]) for row in rows), default=0) for index in (0, 1)]
    lines = [f"{first:<{widths[0]}}  {second:<{widths[1]}}  {third}" for first, second, third in rows]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _shown(value: object) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
