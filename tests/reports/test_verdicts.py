"""The policy from cases to verdict and exit status."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.verdicts import (
    Expect,
    ReportVerdict,
    Verdict,
    count_planted,
    exit_status,
    is_seen,
    report_verdict,
    settle,
)


class Pair:
    """The least a case has to be."""

    def __init__(self, expect: str, verdict: str) -> None:
        self.expect, self.verdict = Expect(expect), Verdict(verdict)

    def __repr__(self) -> str:
        return f"{self.expect}:{self.verdict}"


def pairs(text: str) -> list[Pair]:
    return [Pair(*word.split(":")) for word in text.split()]


def status(text: str, **flags) -> tuple[str, int]:
    verdict = report_verdict(pairs(text), **flags)
    return str(verdict), exit_status(verdict, flags.get("interrupted_by"))


POLICY = [
    ("match:match", "match", 0),
    ("match:match match:skipped", "match", 0),
    ("match:match caught:caught refused:refused", "match", 0),
    ("match:match refused:caught", "match", 0),
    ("match:match caught:skipped", "match", 0),
    ("match:match any:drift any:failed any:refused any:inconclusive", "match", 0),
    ("", "inconclusive", 3),
    ("match:skipped", "inconclusive", 3),
    ("match:skipped caught:caught", "inconclusive", 3),
    ("any:match", "inconclusive", 3),
    ("match:match match:inconclusive", "inconclusive", 3),
    ("match:match caught:inconclusive", "inconclusive", 3),
    ("match:match caught:missed", "missed", 1),
    ("match:match caught:match", "missed", 1),
    ("match:match refused:match", "missed", 1),
    ("match:match refused:drift", "missed", 1),
    ("match:inconclusive caught:missed", "missed", 1),
    ("match:match match:drift", "drift", 1),
    ("match:match match:caught", "drift", 1),
    ("match:drift caught:missed match:inconclusive", "drift", 1),
    ("match:match match:refused", "refused", 2),
    ("match:match caught:refused", "refused", 2),
    ("match:refused match:drift caught:missed", "refused", 2),
    ("match:match match:failed", "failed", 4),
    ("match:match caught:failed", "failed", 4),
    ("match:failed match:refused match:drift caught:missed match:inconclusive", "failed", 4),
]


@pytest.mark.parametrize(("cases", "verdict", "code"), POLICY)
def test_policy(cases: str, verdict: str, code: int) -> None:
    assert status(cases) == (verdict, code)


ALL_BAD = "match:failed match:refused match:drift caught:missed match:inconclusive match:match"
FLAGS = [
    ("match:match", {"refused": True}, "refused", 2),
    ("match:drift", {"refused": True}, "refused", 2),
    ("match:match", {"broken": True}, "failed", 4),
    ("match:refused", {"broken": True, "refused": True}, "failed", 4),
    ("match:match", {"interrupted_by": "SIGINT"}, "interrupted", 130),
    ("match:match", {"interrupted_by": "SIGTERM"}, "interrupted", 143),
    (ALL_BAD, {"interrupted_by": "SIGINT", "broken": True, "refused": True}, "interrupted", 130),
    (ALL_BAD, {"interrupted_by": "SIGTERM", "broken": True, "refused": True}, "interrupted", 143),
]


@pytest.mark.parametrize(("cases", "flags", "verdict", "code"), FLAGS)
def test_flags_take_precedence(cases: str, flags: dict, verdict: str, code: int) -> None:
    assert status(cases, **flags) == (verdict, code)


def test_report_verdicts_are_written_worst_last() -> None:
    words = ["match", "inconclusive", "missed", "drift", "refused", "failed", "interrupted"]
    assert [str(verdict) for verdict in sorted(ReportVerdict, key=lambda v: v.severity)] == words


@pytest.mark.parametrize(
    ("expect", "observed", "verdict"),
    [
        ("match", "drift", "drift"),
        ("caught", "drift", "caught"),
        ("caught", "match", "missed"),
        ("refused", "match", "missed"),
        ("refused", "drift", "missed"),
        ("refused", "refused", "refused"),
        ("caught", "inconclusive", "inconclusive"),
        ("any", "drift", "drift"),
    ],
)
def test_settle(expect: str, observed: str, verdict: str) -> None:
    assert settle(Expect(expect), Verdict(observed)) == verdict


@given(st.sampled_from(Expect), st.sampled_from(Verdict))
def test_settling_twice_changes_nothing(expect: Expect, observed: Verdict) -> None:
    once = settle(expect, observed)
    assert settle(expect, once) == once


def test_planted_counts_hold_every_planted_fault() -> None:
    cases = pairs("match:match caught:caught refused:refused caught:skipped caught:missed any:match")
    assert count_planted(cases) == (2, 4)


CASES = st.lists(st.builds(Pair, st.sampled_from(Expect), st.sampled_from(Verdict)), max_size=6)


@given(CASES, st.booleans(), st.booleans())
def test_zero_means_proven(cases: list[Pair], broken: bool, refused: bool) -> None:
    verdict = report_verdict(cases, broken=broken, refused=refused)
    ordinary = [case.verdict for case in cases if case.expect is Expect.MATCH]
    ran = [case for case in cases if case.expect.is_planted and case.verdict is not Verdict.SKIPPED]
    proven = (
        Verdict.MATCH in ordinary
        and set(ordinary) <= {Verdict.MATCH, Verdict.SKIPPED}
        and all(map(is_seen, ran))
        and not broken
        and not refused
    )
    assert (exit_status(verdict) == 0) == proven


@given(CASES, st.sampled_from(["SIGINT", "SIGTERM"]))
def test_cases_for_information_never_count(cases: list[Pair], signal: str) -> None:
    counted = [case for case in cases if case.expect is not Expect.ANY]
    assert report_verdict(cases) == report_verdict(counted)
    assert report_verdict(cases, interrupted_by=signal) is ReportVerdict.INTERRUPTED
