"""JUnit XML: what a test view makes of a report."""

from collections.abc import Callable

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

from reports import CaseResult, Report, ReportError, render

Maker = Callable[..., CaseResult]


def parsed(report: Report) -> JUnitXml:
    return JUnitXml.fromstring(render(report, "junit").encode())


def outcomes(report: Report) -> dict[str, str]:
    """Testcase name -> what it counts as."""
    return {
        case.name: type(case.result[0]).__name__ if case.result else "passed"
        for suite in parsed(report)
        for case in suite
    }


@pytest.mark.parametrize(
    ("verdict", "expect", "counts_as"),
    [
        ("match", "match", "passed"),
        ("drift", "match", "Failure"),
        ("inconclusive", "match", "Failure"),
        ("refused", "match", "Error"),
        ("failed", "match", "Error"),
        ("skipped", "match", "Skipped"),
        ("caught", "caught", "passed"),
        ("refused", "refused", "passed"),
        ("missed", "caught", "Failure"),
        ("missed", "refused", "Failure"),
        ("refused", "caught", "Error"),
        ("inconclusive", "caught", "Failure"),
        ("skipped", "caught", "Skipped"),
        ("match", "any", "passed"),
        ("drift", "any", "Skipped"),
        ("failed", "any", "Skipped"),
    ],
)
def test_each_verdict_counts_as(make_case: Maker, verdict: str, expect: str, counts_as: str) -> None:
    report = Report.assemble(cases=[make_case(), make_case(verdict, expect, name="it")])
    found = [kind for name, kind in outcomes(report).items() if name.startswith("it")]
    assert found == [counts_as]


@pytest.mark.parametrize(
    ("verdicts", "flags", "status"),
    [
        ("match:match caught:caught", {}, 0),
        ("match:match match:skipped", {}, 0),
        ("", {}, 3),
        ("match:skipped caught:caught", {}, 3),
        ("match:match", {"errors": [ReportError(code="contract", message="no")]}, 2),
        ("match:match", {"broken": True}, 4),
        ("match:match", {"interrupted_by": "SIGTERM"}, 143),
        ("match:drift any:drift", {}, 1),
    ],
)
def test_it_is_green_exactly_if_the_exit_status_is_0(
    make_case: Maker, verdicts: str, flags: dict, status: int
) -> None:
    pairs = [word.split(":") for word in verdicts.split()]
    cases = [make_case(verdict, expect, name=f"{number}") for number, (expect, verdict) in enumerate(pairs)]
    report = Report.assemble(cases=cases, **flags)
    document = parsed(report)
    assert report.exit_status == status
    assert (document.failures + document.errors == 0) == (status == 0)
    named = outcomes(report)
    assert len(named) == len(cases) + ("verdict" in named)


def test_a_failure_says_what_and_where(rich_report: Report) -> None:
    document = parsed(rich_report)
    assert [suite.name for suite in document] == [
        "grpo-verify layouts",
        "grpo-verify planted faults",
        "grpo-verify for information",
    ]
    assert (document.tests, document.failures, document.errors, document.skipped) == (16, 3, 0, 4)
    failure = next(case.result[0] for suite in document for case in suite if case.result)
    assert (type(failure), failure.type) == (Failure, "drift")
    assert "12 of 32,768 elements drifted" in failure.message
    assert "sequence 3, token 17, vocab column 1025, on rank tp=1 dp=0" in failure.text


def test_any_text_gives_xml_that_parses(make_case: Maker) -> None:
    evil = "a\x00b\x1b]]> <c> & \"d\" 'e' \ufffe\ud800 日本 \u202e"
    cases = [
        make_case(verdict, name=evil, op=evil, batch=evil, reason=evil)
        for verdict in ("match", "drift", "failed", "skipped")
    ]
    report = Report.assemble(cases=cases, errors=[ReportError(code=evil, message=evil)], notes=[evil])
    kinds = [type(case.result[0]) for suite in parsed(report) for case in suite if case.result]
    assert kinds == [Failure, Error, Skipped]
    assert "\\x00b\\x1b" in render(report, "junit")


def test_every_name_is_unique(rich_report: Report) -> None:
    names = [(case.classname, case.name) for suite in parsed(rich_report) for case in suite]
    assert len(set(names)) == len(names)
