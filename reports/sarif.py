"""The report as SARIF 2.1.0, for tools that collect findings: one result for each case that must not be so."""

import json
from hashlib import sha256
from typing import Any

from reports.cases import CaseResult
from reports.closing import closing_sentence
from reports.labels import drifted, label, place, shortened
from reports.model import Report
from reports.ranking import is_trouble, worst_first
from reports.verdicts import Verdict

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_MOST_RESULTS = 5000
_MESSAGE_CHARS = 1000
_RULES = {
    Verdict.DRIFT: "A layout gives other bits than the baseline",
    Verdict.MISSED: "A planted fault was not seen",
    Verdict.REFUSED: "A case was stopped before any comparison",
    Verdict.FAILED: "A case crashed or hung",
    Verdict.INCONCLUSIVE: "A comparison could not have shown a difference",
}


def render_sarif(report: Report) -> str:
    """Return the log. A result has a file only where its op is given as package.module:attribute."""
    found = [case for case in worst_first(report.cases) if is_trouble(case)]
    rules = [{"id": str(rule), "shortDescription": {"text": text}} for rule, text in _RULES.items()]
    run = {
        "tool": {"driver": {"name": "grpo-verify", "rules": rules}},
        "invocations": [_invocation(report)],
        "results": [_result(case) for case in found[:_MOST_RESULTS]],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _invocation(report: Report) -> dict[str, Any]:
    problems = [f"{error.code}: {error.message}" for error in report.errors]
    notices = [{"level": "error", "message": {"text": text}} for text in problems]
    return {
        "executionSuccessful": report.exit_status in (0, 1, 3),
        "exitCode": report.exit_status,
        "exitCodeDescription": closing_sentence(report),
        "toolExecutionNotifications": notices,
    }


def _result(case: CaseResult) -> dict[str, Any]:
    name = label(case)
    return {
        "ruleId": str(case.verdict),
        "level": "warning" if case.verdict is Verdict.INCONCLUSIVE else "error",
        "message": {"text": shortened(f"{name}: {_why(case)}", _MESSAGE_CHARS)},
        "locations": [_location(case)],
        "partialFingerprints": {"case/v1": sha256(f"{case.op} {name}".encode()).hexdigest()},
    }


def _why(case: CaseResult) -> str:
    words = [case.reason, case.diagnosis.words if case.diagnosis else None]
    for quantity in case.drifted[:1]:
        first = f", first at {place(quantity.first)}" if quantity.first else ""
        words.append(f"{quantity.name}: {drifted(quantity)}{first}")
    return "; ".join(filter(None, words)) or "no reason was given"


def _location(case: CaseResult) -> dict[str, Any]:
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": case.op, "kind": "function"}]}
    module, colon, _ = case.op.partition(":")
    if colon:
        path = f"{module.replace('.', '/')}.py"
        location["physicalLocation"] = {"artifactLocation": {"uri": path}, "region": {"startLine": 1}}
    return location
