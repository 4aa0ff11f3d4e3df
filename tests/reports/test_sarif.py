"""SARIF: findings for tools that collect them."""

import json
from collections.abc import Callable
from typing import Any

from reports import CaseResult, Report, ReportError, render

Maker = Callable[..., CaseResult]


def run_of(report: Report) -> dict[str, Any]:
    log = json.loads(render(report, "sarif"))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    return run


def fingerprints(report: Report) -> list[str]:
    return [result["partialFingerprints"]["case/v1"] for result in run_of(report)["results"]]


def test_only_what_is_wrong_is_a_result(rich_report: Report) -> None:
    run = run_of(rich_report)
    assert [result["ruleId"] for result in run["results"]] == ["drift", "missed", "inconclusive"]
    assert {result["ruleId"] for result in run["results"]} <= {
        rule["id"] for rule in run["tool"]["driver"]["rules"]
    }
    assert "12 of 32,768 elements drifted" in run["results"][0]["message"]["text"]
    assert run["invocations"][0]["exitCode"] == 1


def test_an_op_of_a_module_has_a_file(make_case: Maker) -> None:
    cases = [make_case("drift", op="kernels.grpo:Loss"), make_case("drift", op="grpo_loss")]
    mine, registered = (result["locations"][0] for result in run_of(Report.assemble(cases=cases))["results"])
    assert mine["physicalLocation"]["artifactLocation"]["uri"] == "kernels/grpo.py"
    assert "physicalLocation" not in registered


def test_fingerprints_tell_cases_apart_and_stay(make_case: Maker) -> None:
    cases = [make_case("drift", seed=seed) for seed in range(3)]
    prints = fingerprints(Report.assemble(cases=cases))
    assert len(set(prints)) == 3
    assert fingerprints(Report.assemble(cases=cases[:1])) == prints[:1]


def test_a_refused_request_is_told() -> None:
    report = Report.assemble(errors=[ReportError(code="contract", message="alpha: expected 0 to 1")])
    invocation = run_of(report)["invocations"][0]
    assert invocation["executionSuccessful"] is False
    assert "alpha" in invocation["toolExecutionNotifications"][0]["message"]["text"]
