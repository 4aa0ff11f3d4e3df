"""How a launch ended, as a report tells it."""

from __future__ import annotations

import json
from typing import Any

from grpo_contract.errors import ERROR_CLASSES
from harness.files.report_file import full_disk
from harness.files.rundir import ENVIRONMENT, RunDir, read_text
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from reports import ReportError


def told_by(outcome: LaunchOutcome, rundir: RunDir) -> dict[str, Any]:
    """The fields of a report that say how its launch ended, whatever was launched."""
    refusals = refusals_of(outcome)
    stopped = outcome.kind in (OutcomeKind.FINISHED, OutcomeKind.INTERRUPTED)
    return {
        "interrupted_by": outcome.signal if outcome.kind is OutcomeKind.INTERRUPTED else None,
        "broken": not stopped and not refusals,
        "errors": refusals,
        "environment": json.loads(read_text(rundir.path / ENVIRONMENT) or "{}"),
        "culprit": culprit_line(outcome, rundir),
    }


def refusals_of(outcome: LaunchOutcome) -> list[ReportError]:
    """A rank that failed with one of our own errors was asked for something wrong; that is no break."""
    error = outcome.error
    if error is None or error.code not in ERROR_CLASSES:
        return []
    return [ReportError(code=error.code, message=error.message)]


def culprit_line(outcome: LaunchOutcome, rundir: RunDir) -> str | None:
    """Who ended the launch and why, and what else is to be known of it; None where nobody did."""
    if outcome.culprit is None:
        return None
    words = [outcome.culprit.reason]
    if outcome.error is not None and outcome.error.message not in outcome.culprit.reason:
        words.append(f"{outcome.error.code}: {outcome.error.message}")
    if full := full_disk(rundir.path):
        words.append(full)
    if outcome.left:
        words.append(f"could not be ended: processes {', '.join(map(str, outcome.left))}")
    if rundir.is_gone:
        return "; ".join([*words, f"somebody removed the folder of the run while it ran: {rundir.path}"])
    return f"{'; '.join(words)} (logs: {rundir.logs})"
