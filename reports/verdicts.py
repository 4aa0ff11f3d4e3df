"""The words a case and a report can end with, and the pure policy from cases to exit status."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, Protocol

Signal = Literal["SIGINT", "SIGTERM", "SIGHUP"]


class Verdict(StrEnum):
    """How one case, or one compared quantity, ended."""

    MATCH = "match"
    DRIFT = "drift"
    CAUGHT = "caught"
    MISSED = "missed"
    REFUSED = "refused"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"
    FAILED = "failed"


class ReportVerdict(StrEnum):
    """How a whole report ended, written from best to worst."""

    MATCH = "match"
    INCONCLUSIVE = "inconclusive"
    MISSED = "missed"
    DRIFT = "drift"
    REFUSED = "refused"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def severity(self) -> int:
        """Position in the order of this enum: the larger, the worse."""
        return list(ReportVerdict).index(self)


class Expect(StrEnum):
    """What a case has to show. `caught` and `refused` mark planted faults; `any` counts for nothing."""

    MATCH = "match"
    CAUGHT = "caught"
    REFUSED = "refused"
    ANY = "any"

    @property
    def is_planted(self) -> bool:
        """Whether a case with this expectation is a planted fault."""
        return self in (Expect.CAUGHT, Expect.REFUSED)


class Judged(Protocol):
    """All that the policy needs to know of a case."""

    @property
    def expect(self) -> Expect: ...

    @property
    def verdict(self) -> Verdict: ...


_SETTLED = {
    (Expect.MATCH, Verdict.CAUGHT): Verdict.DRIFT,
    (Expect.CAUGHT, Verdict.MATCH): Verdict.MISSED,
    (Expect.CAUGHT, Verdict.DRIFT): Verdict.CAUGHT,
    (Expect.REFUSED, Verdict.MATCH): Verdict.MISSED,
    # A disagreement that drifts instead of being refused got past the preflight: that is a miss.
    (Expect.REFUSED, Verdict.DRIFT): Verdict.MISSED,
}

_WEIGHTS = {
    Verdict.MATCH: ReportVerdict.MATCH,
    Verdict.DRIFT: ReportVerdict.DRIFT,
    Verdict.MISSED: ReportVerdict.MISSED,
    Verdict.REFUSED: ReportVerdict.REFUSED,
    Verdict.INCONCLUSIVE: ReportVerdict.INCONCLUSIVE,
    Verdict.FAILED: ReportVerdict.FAILED,
}

_EXIT_STATUS = {
    ReportVerdict.MATCH: 0,
    ReportVerdict.INCONCLUSIVE: 3,
    ReportVerdict.MISSED: 1,
    ReportVerdict.DRIFT: 1,
    ReportVerdict.REFUSED: 2,
    ReportVerdict.FAILED: 4,
}

_SIGNAL_STATUS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


def settle(expect: Expect, observed: Verdict) -> Verdict:
    """Turn what a case showed into its verdict: a planted fault that drifts is caught, else missed."""
    return _SETTLED.get((expect, observed), observed)


def is_seen(case: Judged) -> bool:
    """Whether a case is a planted fault that was noticed in the way it had to be."""
    verdict = settle(case.expect, case.verdict)
    refused_as_planned = case.expect is Expect.REFUSED and verdict is Verdict.REFUSED
    return case.expect.is_planted and (refused_as_planned or verdict is Verdict.CAUGHT)


def weigh(case: Judged) -> ReportVerdict | None:
    """What one case makes of the whole report; None for a case that neither proves nor harms anything."""
    if case.expect is Expect.ANY or is_seen(case):
        return None
    return _WEIGHTS.get(settle(case.expect, case.verdict))


def report_verdict(
    cases: Iterable[Judged],
    *,
    interrupted_by: Signal | None = None,
    broken: bool = False,
    refused: bool = False,
) -> ReportVerdict:
    """Return the worst that applies; without a single matched layout it is at best `inconclusive`."""
    found = {weight for case in cases if (weight := weigh(case)) is not None}
    if ReportVerdict.MATCH not in found:
        found.add(ReportVerdict.INCONCLUSIVE)
    flags = {
        ReportVerdict.INTERRUPTED: interrupted_by is not None,
        ReportVerdict.FAILED: broken,
        ReportVerdict.REFUSED: refused,
    }
    found.update(verdict for verdict, applies in flags.items() if applies)
    return max(found, key=lambda verdict: verdict.severity)


def exit_status(verdict: ReportVerdict, interrupted_by: Signal | None = None) -> int:
    """Return the process exit status: 0, 1, 2, 3, 4, or 130 / 143 / 129 after SIGINT / SIGTERM / SIGHUP."""
    if verdict is ReportVerdict.INTERRUPTED:
        return _SIGNAL_STATUS[interrupted_by or "SIGINT"]
    return _EXIT_STATUS[verdict]


def count_planted(cases: Iterable[Judged]) -> tuple[int, int]:
    """Return (planted faults seen, planted faults in the plan, skipped and inconclusive ones included)."""
    planted = [case for case in cases if case.expect.is_planted]
    return sum(map(is_seen, planted)), len(planted)
