"""Cases in order of urgency, and how each one counts for a reader that knows only pass, fail and skip."""

from collections.abc import Iterable
from enum import StrEnum

from reports.cases import CaseResult
from reports.verdicts import Expect, Verdict, is_seen

_ORDER = (
    Verdict.FAILED,
    Verdict.REFUSED,
    Verdict.DRIFT,
    Verdict.MISSED,
    Verdict.INCONCLUSIVE,
    Verdict.SKIPPED,
    Verdict.CAUGHT,
    Verdict.MATCH,
)


class Standing(StrEnum):
    """What a case means to a test runner."""

    PASSED = "passed"
    FAILED = "failed"
    BROKEN = "broken"
    SKIPPED = "skipped"


def standing(case: CaseResult) -> Standing:
    """Return how a case counts: only what was shown passes, and nothing for information fails."""
    if is_seen(case) or case.verdict is Verdict.MATCH:
        return Standing.PASSED
    if case.verdict is Verdict.SKIPPED or case.expect is Expect.ANY:
        return Standing.SKIPPED
    return Standing.BROKEN if case.verdict in (Verdict.FAILED, Verdict.REFUSED) else Standing.FAILED


def is_trouble(case: CaseResult) -> bool:
    """Whether a case keeps its report from being a match."""
    return standing(case) in (Standing.FAILED, Standing.BROKEN)


def worst_first(cases: Iterable[CaseResult]) -> list[CaseResult]:
    """Return what breaks a report before what is merely measured; otherwise in the order of the run."""
    return sorted(cases, key=lambda case: (not is_trouble(case), _ORDER.index(case.verdict)))


def verdict_words(case: CaseResult) -> str:
    """Return the verdict, and that a refusal was the planned outcome where it was."""
    return "refused as planned" if case.verdict is Verdict.REFUSED and is_seen(case) else case.verdict.value
