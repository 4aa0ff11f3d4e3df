"""What `reveal` and `snapshot` do with the user's op. Brings torch: for the child of harness.inspection.apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from grpo_contract import error_from
from harness.planning.layouts import degree_problems, layouts_of
from harness.planning.planned import Plan
from harness.revealing import reveal as revealing
from harness.revealing.probe_shape import ProbeShape
from harness.revealing.reveal_text import Asked, reveal_content, reveal_text
from harness.settings.devices import resolve_device, this_machine
from harness.settings.run_config import RunConfig
from harness.snapshots.check import State, check_entries
from harness.snapshots.obtain import Obtained, obtain
from harness.snapshots.report import snapshot_report
from harness.stdio import Look
from reports import render

Answer = tuple[str, int]
Tick = Callable[[], None]


def revealed(given: Mapping[str, Any], sizes: Mapping[str, Any], as_json: bool, *, tick: Tick) -> Answer:
    """The trees of an op as text, or as JSON, with the status that follows from them."""
    torch.set_num_threads(1)
    settings, shape = RunConfig(**given), ProbeShape(**sizes)
    layouts = layouts_of(settings, None)
    if problems := degree_problems(settings, layouts, "probe", shape.contract(shape.tokens)):
        raise error_from(problems)
    device = resolve_device(settings, this_machine())[0]
    op = revealing.op_to_ask(settings.op, settings.backend, shape, device)
    found = revealing.reveal(op, layouts, shape, device=device, tick=tick)
    asked = Asked.of(settings.op, op, device, shape.dtype)
    text = json.dumps(reveal_content(asked, found), indent=2) + "\n" if as_json else reveal_text(asked, found)
    return text, revealing.reveal_status(found)


def saved(plan: str, folder: str, update: bool, notes: Sequence[str], *, tick: Tick) -> Answer:
    """Add what the snapshot in `folder` lacks; the states as lines."""
    found = check_entries(Path(folder), _obtained(plan, tick), save=True, update=update)
    lines = [f"{each.state.value}: {each.entry.name}: {each.why}" for each in found]
    lines += [f"note: {note}" for note in notes]
    drifted = any(each.state is State.DRIFT for each in found)
    end = "kept as it was; --update replaces what differs" if drifted else f"snapshot in {folder}"
    return "\n".join([*lines, end, ""]), 1 if drifted else 0


def checked(
    plan: str,
    folder: str,
    update: bool,
    notes: Sequence[str],
    command_line: Sequence[str],
    wanted: tuple[str, bool],
    look: Look,
    *,
    tick: Tick,
) -> Answer:
    """The report of a check, rendered: `wanted` is the format, and whether only the outcome is."""
    found = check_entries(Path(folder), _obtained(plan, tick), update=update)
    report = snapshot_report(found, Path(folder), command_line, notes)
    format, quiet = wanted
    return render(report, format, quiet=quiet, **look), report.exit_status


def _obtained(plan: str, tick: Tick) -> Iterator[Obtained]:
    for each in obtain(Plan.model_validate_json(plan)):
        tick()
        yield each
