"""A comparison of training runs from the parent's side: launch, collect, report. Never imports torch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_contract.fingerprint import fingerprint
from harness.files.report_file import keep
from harness.files.rundir import RunDir
from harness.launching.launch import launch
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from harness.launching.launch_request import LaunchRequest
from harness.runs.launch_end import told_by
from harness.settings.out_folder import REPORT
from harness.system.signals import finish_first
from harness.workloads.train_plan import TrainCase, TrainPlan
from reports import CaseResult, Expect, Layout, Report, Verdict

WORKER = "harness.workloads.train_worker"
ABOUT_BASELINE = "one rank"


def run_training(
    plan: TrainPlan, *, out: Path | None, on_progress: Callable[[str], None], command: Sequence[str]
) -> Report:
    """Run `plan` and report; with `out` the report lands in `out/report.json`, beside the run's directory."""
    started = time.perf_counter()
    rundir = RunDir.create(out)
    rundir.write_plan(plan.model_dump_json())
    finished: dict[int, CaseResult] = {}
    total = sum(case.skip is None for case in plan.cases)

    def on_case(index: int, text: str) -> None:
        finished[index] = case = CaseResult.model_validate_json(text)
        on_progress(f"[{len(finished)}/{total}] {case.name}: {case.settled().verdict.value}")

    on_progress(f"starting {plan.ranks} ranks on {plan.device} for {total} training runs")
    request = LaunchRequest(plan.ranks, rundir, timeout=plan.timeout, module=WORKER)
    outcome = launch(request, on_case=on_case)
    finish_first()
    report = make_report(plan, finished, outcome, rundir, command, time.perf_counter() - started)
    # After the report, which says so where they filled the disk; before it is kept, which may need their room.
    shutil.rmtree(rundir.path / "states", ignore_errors=True)
    if out is None and outcome.kind is OutcomeKind.FINISHED:
        shutil.rmtree(rundir.path, ignore_errors=True)
    return report if out is None else keep(report, out / REPORT)


def make_report(
    plan: TrainPlan,
    finished: dict[int, CaseResult],
    outcome: LaunchOutcome,
    rundir: RunDir,
    command: Sequence[str],
    seconds: float,
) -> Report:
    """The report of what was finished, and of why the rest was not."""
    recipe = plan.cases[0].settings.model_dump(mode="json", exclude={"out", "format", "quiet", "color", "timeout"})
    return Report.assemble(
        **told_by(outcome, rundir),
        cases=[finished.get(case.index) or _unfinished(case, outcome) for case in plan.cases],
        command=command,
        contract={"training": recipe},
        numeric_fingerprint=fingerprint(recipe),
        notes=plan.notes,
        baseline=ABOUT_BASELINE,
        times={"total_seconds": seconds, "launch_seconds": outcome.seconds},
    )


def _unfinished(case: TrainCase, outcome: LaunchOutcome) -> CaseResult:
    at_fault = outcome.culprit is not None and outcome.culprit.case == case.name
    lost = outcome.kind is OutcomeKind.FINISHED  # the ranks finished without a result of this case
    broke = case.skip is None and (lost or (at_fault and outcome.kind is not OutcomeKind.INTERRUPTED))
    untold = "the ranks finished without a result of it" if lost else "not run: the run ended before it"
    reason = outcome.culprit.reason if broke and outcome.culprit else untold
    return CaseResult(
        name=case.name,
        op="training",
        layout=Layout(tp=1, dp=case.degree),
        batch=case.settings.workload,
        seed=case.settings.seed,
        expect=Expect(case.expect),
        verdict=Verdict.FAILED if broke else Verdict.SKIPPED,
        reason=case.skip or reason,
    )
