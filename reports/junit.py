"""The report as JUnit XML: one testcase for each case, so that a test view shows what no exit status can."""

from collections.abc import Iterable, Sequence

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from junitparser.junitparser import Result

from reports.cases import CaseResult, QuantityResult
from reports.closing import closing_sentence
from reports.escaping import for_xml
from reports.labels import drifted, label, place, shortened, values
from reports.model import Report
from reports.ranking import Standing, standing
from reports.verdicts import Expect, ReportVerdict

_BROKEN = (ReportVerdict.REFUSED, ReportVerdict.FAILED, ReportVerdict.INTERRUPTED)
_DECLARATION = '<?xml version="1.0" encoding="utf-8"?>'
_MESSAGE_CHARS = 1000
_KINDS: dict[Standing, type[Result]] = {
    Standing.BROKEN: Error,
    Standing.FAILED: Failure,
    Standing.SKIPPED: Skipped,
}


def render_junit(report: Report) -> str:
    """Return the XML: a suite each for layouts, planted faults and what was measured for information.

    A drift, a missed planted fault and a case that proves nothing are failures; what was refused or broke is an
    error. It is free of both exactly if the exit status is 0: where no case says why it is not, a testcase
    named `verdict` does.
    """
    document = JUnitXml("grpo-verify")
    for name, cases in _suites(report.cases).items():
        if cases:
            document.append(_suite(f"grpo-verify {name}", [_testcase(name, case) for case in cases]))
    bad = any(standing(case) in (Standing.FAILED, Standing.BROKEN) for case in report.cases)
    if report.exit_status and not bad:
        document.append(_suite("grpo-verify run", [_verdict_case(report)]))
    document.update_statistics()
    return f"{_DECLARATION}\n{document.tostring().decode()}\n"


def _suites(cases: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    suites: dict[str, list[CaseResult]] = {"layouts": [], "planted faults": [], "for information": []}
    for case in cases:
        kind = "for information" if case.expect is Expect.ANY else "layouts"
        suites["planted faults" if case.expect.is_planted else kind].append(case)
    return suites


def _suite(name: str, cases: Sequence[TestCase]) -> TestSuite:
    suite = TestSuite(name)
    for case in cases:
        suite.append(case)  # add_testcase would count the whole suite again each time
    return suite


def _testcase(suite: str, case: CaseResult) -> TestCase:
    name = for_xml(label(case))
    found = TestCase(name, for_xml(f"grpo_verify.{suite.replace(' ', '_')}.{case.op}"), case.seconds)
    if result := _result(case):
        found.append(result)
    elif case.reason:
        found.system_out = for_xml(case.reason)
    return found


def _result(case: CaseResult) -> Result | None:
    kind = _KINDS.get(standing(case))
    if kind is None:
        return None
    words = case.diagnosis.words if case.diagnosis else None
    lines = [_drift_line(quantity) for quantity in case.drifted]
    message = case.reason or words or (lines[0] if lines else "no reason was given")
    result = kind(for_xml(shortened(message, _MESSAGE_CHARS)), str(case.verdict))
    result.text = for_xml("\n".join(filter(None, (case.reason, words, *lines))))
    return result


def _drift_line(quantity: QuantityResult) -> str:
    sizes = f"{drifted(quantity)}, max ULP {quantity.max_ulp:,}, max abs {quantity.max_abs:.3g}"
    first = f"; first: {place(quantity.first)}: {values(quantity.first)}" if quantity.first else ""
    return f"{quantity.name}: {sizes}{first}"


def _verdict_case(report: Report) -> TestCase:
    found = TestCase("verdict", "grpo_verify.run")
    kind = Error if report.verdict in _BROKEN else Failure
    result = kind(for_xml(shortened(closing_sentence(report), _MESSAGE_CHARS)), str(report.verdict))
    problems = [f"[{error.code}] {error.message}" for error in report.errors]
    result.text = for_xml("\n".join([*problems, *report.notes]))
    found.append(result)
    return found
