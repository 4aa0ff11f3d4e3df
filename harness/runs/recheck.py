"""A second look at a hang: the hung case alone, with every collective checked. Never imports torch.

A hang says who did not come, seldom why. With TORCH_DISTRIBUTED_DEBUG=DETAIL torch compares what the ranks are
about to run before each collective, so that ranks which run different ones fail at once, with both named.
"""

from __future__ import annotations

import dataclasses
import re

from harness.files.rundir import RunDir
from harness.launching.launch import launch
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from harness.launching.launch_request import LaunchRequest
from harness.planning.planned import Plan, PlannedCase

CHECKED = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
_MISMATCH = re.compile(
    r"Rank (?P<one>\d+) is running collective: CollectiveFingerPrint\((?P<first>.*?)\), but Rank (?P<other>\d+)"
    r" is running collective: CollectiveFingerPrint\((?P<second>.*?)\)(\.|$)",
    re.DOTALL,
)
_FIELDS = (r"OpType=(\w+)", r"TensorShape=(\[[^\]]*\])", r"TensorDtypes=(\w+)")


@dataclasses.dataclass(frozen=True)
class SecondLook:
    """What running the hung case once more told: in words, the signal that ended it, and whom it blames."""

    words: str
    signal: str | None = None
    ranks: tuple[int, ...] = ()


def hung_case(plan: Plan, outcome: LaunchOutcome) -> PlannedCase | None:
    """The case to look at again; None when none hung, when nobody waited for it, or when the cause is known."""
    if outcome.kind is not OutcomeKind.HUNG or outcome.culprit is None or plan.ranks == 1:
        return None
    if outcome.culprit.explained:
        return None
    return next((case for case in plan.cases if case.name == outcome.culprit.case), None)


def look_again(plan: Plan, case: PlannedCase, request: LaunchRequest, first: LaunchOutcome) -> SecondLook:
    """Run `case` alone as `request` ran the plan, in a directory below its own, with the same deadlines."""
    again = RunDir.create(request.rundir.path)
    again.write_plan(_only(plan, case).model_dump_json())
    outcome = launch(dataclasses.replace(request, rundir=again, env={**request.env, **CHECKED}))
    if outcome.kind is OutcomeKind.INTERRUPTED:
        return SecondLook(f"run once more, it was ended by {outcome.signal}", outcome.signal)
    hung = outcome.kind is OutcomeKind.HUNG and outcome.culprit is not None
    ranks = outcome.culprit.ranks if hung and outcome.culprit is not None else ()
    words = f"run once more with every collective checked, {_words(outcome, first)}"
    return SecondLook(words, outcome.signal, ranks)


def with_second_look(outcome: LaunchOutcome, second: SecondLook) -> LaunchOutcome:
    """The hang, with what the second look told; interrupted when that was.

    On a GPU only the checked collectives wait where a stack shows it: the second look may blame fewer ranks.
    """
    assert outcome.culprit is not None
    fewer = second.ranks if set(second.ranks) < set(outcome.culprit.ranks) else ()
    reason = f"{outcome.culprit.reason}; {second.words}"
    culprit = dataclasses.replace(outcome.culprit, ranks=fewer or outcome.culprit.ranks, reason=reason)
    kind = OutcomeKind.HUNG if second.signal is None else OutcomeKind.INTERRUPTED
    return dataclasses.replace(outcome, culprit=culprit, kind=kind, signal=second.signal)


def _only(plan: Plan, case: PlannedCase) -> Plan:
    alone = case.model_copy(update={"index": 0})
    return plan.model_copy(update={"cases": (alone,)})


def _words(outcome: LaunchOutcome, first: LaunchOutcome) -> str:
    if outcome.kind is OutcomeKind.FINISHED:
        return "the case ended well: what hung depends on timing, or on the cases before it"
    if mismatch := mismatch_of(outcome):
        return mismatch
    if outcome.culprit is not None and outcome.culprit == first.culprit:
        return "it hangs at the same place, and no collective differs"
    return outcome.culprit.reason if outcome.culprit is not None else "it could not be judged"


def mismatch_of(outcome: LaunchOutcome) -> str | None:
    """Two ranks and the collectives they were about to run, from torch's own message."""
    messages = [status.error.message for status in outcome.statuses if status.error is not None]
    found = next((match for text in messages if (match := _MISMATCH.search(text))), None)
    if found is None:
        return None
    one, other = _short(found["first"]), _short(found["second"])
    return f"rank {found['one']} runs {one} where rank {found['other']} runs {other}"


def _short(fingerprint: str) -> str:
    """`ALLGATHER [3] Float`: what, of which shape, of which type."""
    found = (re.search(field, fingerprint) for field in _FIELDS)
    return " ".join(match[1] for match in found if match is not None)
