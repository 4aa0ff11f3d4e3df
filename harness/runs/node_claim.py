"""A folder that a run without a launcher is to fill: whether it holds another run, which must not be lost."""

from __future__ import annotations

import os
from pathlib import Path

from grpo_contract import Problem
from harness.files.rundir import RunDir, read_text
from harness.planning.planned import Plan
from harness.runs.node_meeting import STALE
from harness.runs.resume import KEPT
from reports import Report, ReportFormatError, ReportVerdict, Verdict


def staleness(rundir: RunDir, report: Path, plan: Plan) -> list[Problem]:
    """Why `rundir`, or the place of `report`, holds another run. torchrun's own restart may go on there."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        return []
    stale = [index for index in rundir.case_indices() if plan.cases[index].skip != KEPT]
    if stale:
        got = f"results of {len(stale)} cases of an earlier run (prepare another directory)"
        return [Problem(STALE, str(rundir.path), "a directory without results", got)]
    if _is_a_runs(report):
        got = "the report of a run that has begun (prepare another directory, or remove it)"
        return [Problem(STALE, str(report), "no report yet", got)]
    return []


def _is_a_runs(report: Path) -> bool:
    """Whether `report` tells of a run; the refusal of one before any case does not."""
    text = read_text(report)
    if text is None:
        return False
    try:
        earlier = Report.from_json(text)
    except (ReportFormatError, ValueError):
        return True
    unused = all(case.verdict in (Verdict.SKIPPED, Verdict.REFUSED) for case in earlier.cases)
    return not (earlier.verdict is ReportVerdict.REFUSED and unused)
