"""A run from the parent's side: launch the ranks, collect their cases, keep the report. Never imports torch."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.files.report_file import keep
from harness.files.rundir import RunDir
from harness.launching.launch import launch
from harness.launching.launch_outcome import OutcomeKind
from harness.launching.launch_request import LaunchRequest
from harness.launching.launch_watch import OnCase
from harness.planning.planned import Plan
from harness.provenance.identity import write_identity
from harness.runs.earlier_run import Earlier
from harness.runs.recheck import hung_case, look_again, with_second_look
from harness.runs.resume import prepare
from harness.runs.run_report import make_report
from harness.settings.out_folder import REPORT
from harness.system.signals import finish_first
from reports import CaseResult, Report

Progress = Callable[[str], None]


def run(
    plan: Plan,
    *,
    out: Path | None,
    on_progress: Progress,
    command: Sequence[str] | None = None,
    earlier: Earlier | None = None,
) -> Report:
    """Run `plan` and report. With `out` the report lands in `out/report.json`, beside the run's directory.

    Whatever was finished before a break or an interruption is in the report, and so is what `earlier`, the
    same run interrupted, had finished. A case that hangs is run once more, alone, to learn why.
    """
    started = time.perf_counter()
    rundir = RunDir.create(out)
    todo = plan if earlier is None else prepare(rundir, earlier, plan)
    rundir.write_plan(todo.model_dump_json())
    write_identity(rundir, plan)
    finished: dict[int, CaseResult] = {}
    total = sum(case.skip is None for case in plan.cases)
    ranks = "1 rank" if plan.ranks == 1 else f"{plan.ranks} ranks"
    on_progress(f"starting {ranks} on {plan.device} for {total} cases")
    request = LaunchRequest(plan.ranks, rundir, timeout=plan.timeout)
    outcome = launch(request, on_case=_collector(finished, total, on_progress))
    finish_first()
    if hung := hung_case(todo, outcome):
        on_progress(f"{hung.name} hung: once more, alone, with every collective checked")
        outcome = with_second_look(outcome, look_again(todo, hung, request, outcome))
    report = make_report(todo, finished, outcome, rundir, command or sys.argv, time.perf_counter() - started)
    if out is None and outcome.kind is OutcomeKind.FINISHED:
        shutil.rmtree(rundir.path, ignore_errors=True)
    return report if out is None else keep(report, out / REPORT)


def _collector(finished: dict[int, CaseResult], total: int, on_progress: Progress) -> OnCase:
    """What takes each case of `total` into `finished` and says so."""

    def on_case(index: int, text: str) -> None:
        finished[index] = CaseResult.model_validate_json(text)
        on_progress(f"[{len(finished)}/{total}] {finished[index].name}: {finished[index].settled().verdict.value}")

    return on_case
