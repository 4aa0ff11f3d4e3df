"""The report of a run: what was finished, and why the rest was not."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_contract.fingerprint import fingerprint
from harness.files.rundir import OP_LAUNCH, RunDir
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from harness.planning.planned import Plan, PlannedCase
from harness.planning.stress_notes import stress_notes
from harness.runs.launch_end import refusals_of, told_by
from harness.settings.batch_spec import CONTROL
from reports import CaseResult, Expect, Layout, Report, Verdict


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
            *plan.batch_notes,
            *_resume_note(outcome, finished, rundir),
        ],
        times={"total_seconds": seconds, "launch_seconds": outcome.seconds},
    )


def _resume_note(outcome: LaunchOutcome, finished: dict[int, CaseResult], rundir: RunDir) -> list[str]:
    """Whoever has lost a long run must not have to look for how to go on with it."""
    if outcome.kind is OutcomeKind.FINISHED or not finished or rundir.is_gone:
        return []
    return [f"{len(finished)} finished cases are kept: grpo-verify --resume {rundir.path} goes on from there"]


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
