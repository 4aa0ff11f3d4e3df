"""A run from the parent's side: launch the ranks, collect their cases, make the report. Never imports torch."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo_contract.errors import ERROR_CLASSES
from grpo_contract.fingerprint import fingerprint
from harness.files.report_file import full_disk, keep
from harness.files.rundir import ENVIRONMENT, OP_LAUNCH, RunDir, read_text
from harness.launching.launch import launch
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from harness.launching.launch_request import LaunchRequest
from harness.launching.launch_watch import OnCase
from harness.planning.planned import Plan, PlannedCase
from harness.planning.stress_notes import stress_notes
from harness.provenance.identity import write_identity
from harness.runs.earlier_run import Earlier
from harness.runs.recheck import hung_case, look_again, with_second_look
from harness.runs.resume import prepare
from harness.settings.batch_spec import CONTROL
from harness.settings.out_folder import REPORT
from harness.system.signals import finish_first
from reports import CaseResult, Expect, Layout, Report, ReportError, Verdict

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


def make_report(
    plan: Plan,
    finished: dict[int, CaseResult],
    outcome: LaunchOutcome,
    rundir: RunDir,
    command: Sequence[str],
    seconds: float,
) -> Report:
    """The report of what was finished, and of why the rest was not."""
    cases = _without_hollow_matches(
        [finished.get(case.index) or _unfinished(case, outcome) for case in plan.cases]
    )
    batches = {name: batch.contract for name, batch in plan.batches.items() if name != CONTROL.name}
    told = told_by(outcome, rundir)
    op_launch = told["environment"].get(OP_LAUNCH)
    prints = {name: contract.numeric_fingerprint(op_launch) for name, contract in batches.items()}
    return Report.assemble(
        **told,
        cases=cases,
        command=command,
        contract={name: contract.model_dump(mode="json") for name, contract in batches.items()},
        numeric_fingerprint=next(iter(prints.values())) if len(prints) == 1 else fingerprint(prints),
        preflight=_preflight_line(cases),
        notes=[
            *plan.notes,
            *stress_notes(plan, cases),
            *_batch_notes(plan),
            *_resume_note(outcome, finished, rundir),
        ],
        times={"total_seconds": seconds, "launch_seconds": outcome.seconds},
    )


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


def _batch_notes(plan: Plan) -> list[str]:
    return [note for batch in plan.batches.values() for note in batch.notes]


def _resume_note(outcome: LaunchOutcome, finished: dict[int, CaseResult], rundir: RunDir) -> list[str]:
    """Whoever has lost a long run must not have to look for how to go on with it."""
    if outcome.kind is OutcomeKind.FINISHED or not finished or rundir.is_gone:
        return []
    return [f"{len(finished)} finished cases are kept: grpo-verify --resume {rundir.path} goes on from there"]


def refusals_of(outcome: LaunchOutcome) -> list[ReportError]:
    """A rank that failed with one of our own errors was asked for something wrong; that is no break."""
    error = outcome.error
    if error is None or error.code not in ERROR_CLASSES:
        return []
    return [ReportError(code=error.code, message=error.message)]


def culprit_line(outcome: LaunchOutcome, rundir: RunDir) -> str | None:
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


def _unfinished(case: PlannedCase, outcome: LaunchOutcome) -> CaseResult:
    culprit = outcome.culprit
    at_fault = culprit is not None and culprit.case == case.name and outcome.kind is not OutcomeKind.INTERRUPTED
    verdict, reason = Verdict.SKIPPED, case.skip
    if case.skip is None:
        reason = "not run: the run ended before it"
        if at_fault and culprit is not None:
            verdict = Verdict.REFUSED if refusals_of(outcome) else Verdict.FAILED
            reason = culprit.reason
        elif outcome.kind is OutcomeKind.FINISHED:
            verdict, reason = Verdict.FAILED, "the ranks finished without a result of this case"
    return CaseResult(
        name=case.name,
        op=case.op,
        layout=Layout(tp=case.layout[0], dp=case.layout[1]),
        batch=case.batch,
        seed=case.seed,
        expect=Expect(case.expect),
        verdict=verdict,
        reason=reason,
    )


def _without_hollow_matches(cases: list[CaseResult]) -> list[CaseResult]:
    """1x1 against 1x1 shows that runs repeat. Where no other layout was compared, no report is green for it."""
    if any(_compares_a_layout(case) for case in cases):
        return cases
    reason = "1x1 is the baseline itself: runs repeat, but no other layout was compared"
    hollow = {"verdict": Verdict.INCONCLUSIVE, "reason": reason}
    matched = (Expect.MATCH, Verdict.MATCH)
    return [case.model_copy(update=hollow) if (case.expect, case.verdict) == matched else case for case in cases]


def _compares_a_layout(case: CaseResult) -> bool:
    compared = case.verdict in (Verdict.MATCH, Verdict.DRIFT)
    return case.expect is Expect.MATCH and compared and case.layout != Layout(tp=1, dp=1)


def _preflight_line(cases: Sequence[CaseResult]) -> str | None:
    compared = [case for case in cases if case.expect is Expect.MATCH and case.quantities]
    several = [case for case in compared if case.layout != Layout(tp=1, dp=1)]
    if not several:
        return None
    layouts = list(dict.fromkeys(str(case.layout) for case in several))
    agreed = "contract and mesh" if ":" in several[0].op else "contract, mesh and backend"
    return f"ranks agree on {agreed}, and TP siblings on their inputs, in {', '.join(layouts)}"
