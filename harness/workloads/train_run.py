"""A comparison of training runs from the parent's side: launch, collect, report. Never imports torch."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo_contract.fingerprint import fingerprint
from harness.launch import LaunchOutcome, OutcomeKind, launch
from harness.launch_request import LaunchRequest
from harness.run import REPORT, culprit_line, refusals_of
from harness.rundir import ENVIRONMENT, RunDir, read_text, write_atomic
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
    shutil.rmtree(rundir.path / "states", ignore_errors=True)
    report = make_report(plan, finished, outcome, rundir, command, time.perf_counter() - started)
    if out is not None:
        write_atomic(out / REPORT, report.to_json())
    elif outcome.kind is OutcomeKind.FINISHED:
        shutil.rmtree(rundir.path, ignore_errors=True)
    return report


def make_report(
    plan: TrainPlan,
    finished: dict[int, CaseResult],
    outcome: LaunchOutcome,
    rundir: RunDir,
    command: Sequence[str],
    seconds: float,
) -> Report:
    """The report of what was finished, and of why the rest was not."""
    refusals = refusals_of(outcome)
    stopped = (OutcomeKind.FINISHED, OutcomeKind.INTERRUPTED)
    interrupted: Any = outcome.signal if outcome.kind is OutcomeKind.INTERRUPTED else None
    recipe = plan.cases[0].settings.model_dump(mode="json", exclude={"out", "format", "quiet", "color", "timeout"})
    return Report.assemble(
        cases=[finished.get(case.index) or _unfinished(case, outcome) for case in plan.cases],
        interrupted_by=interrupted,
        broken=outcome.kind not in stopped and not refusals,
        errors=refusals,
        command=command,
        environment=json.loads(read_text(rundir.path / ENVIRONMENT) or "{}"),
        contract={"training": recipe},
        numeric_fingerprint=fingerprint(recipe),
        baseline=ABOUT_BASELINE,
        culprit=culprit_line(outcome, rundir),
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
