"""What a run under --stress says of its power. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from harness.planning.planned import Plan
from harness.settings.run_config import RunConfig
from loss_ops.faults import FAULTS
from reports import CaseResult, Expect, Verdict

_WORDS = {
    Verdict.CAUGHT: "repeats differ where an op adds in order of arrival",
    Verdict.MISSED: "no repeat differs though an op adds in order of arrival: equal ones say nothing of timing",
}


def disturbs(config: RunConfig) -> bool:
    """Whether --stress acts in this run, and its control with it."""
    return config.stress and config.repeat > 1 and not config.virtual


def stress_notes(plan: Plan, cases: Sequence[CaseResult]) -> list[str]:
    """What became of the stress control, where the plan has one; that it has none, under --stress without."""
    if not plan.stress or plan.transport == "virtual" or all(case.repeat == 1 for case in plan.cases):
        return []
    timing = {fault.name for fault in FAULTS if fault.kind == "timing"}
    names = {case.name for case in plan.cases if case.fault in timing}
    found = [case.settled() for case in cases if case.name in names and case.expect is Expect.CAUGHT]
    if not found:
        return ["stress control: none in this run, so it does not show that a dependence on timing would be seen"]
    return [f"stress control: {each.verdict}: {_WORDS.get(each.verdict, each.reason or '')}" for each in found]
