"""Reports as data: round trip, the frozen sample, and what may not be said."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from reports import CaseResult, Layout, QuantityResult, Report, ReportError, ReportFormatError
from reports.schema import schema_text

SAMPLE = Path(__file__).parent / "data" / "report-v1.json"
SCHEMA = Path(__file__).parents[2] / "reports" / "report.schema.json"
Maker = Callable[..., CaseResult]

TOP_LEVEL = [
    "schema_version",
    "verdict",
    "exit_status",
    "command",
    "environment",
    "contract",
    "numeric_fingerprint",
    "planted",
    "cases",
]


def test_round_trip_is_exact(rich_report: Report) -> None:
    text = rich_report.to_json()
    again = Report.from_json(text)
    assert again == rich_report
    assert again.to_json() == text
    assert text.endswith("}\n")
    assert list(json.loads(text))[: len(TOP_LEVEL)] == TOP_LEVEL


def test_the_frozen_sample_still_loads_and_is_written_alike() -> None:
    text = SAMPLE.read_text()
    report = Report.from_json(text)
    assert report.to_json() == text
    assert (report.verdict, report.exit_status) == ("drift", 1)
    assert (report.planted.caught, report.planted.total) == (5, 7)


def test_the_shipped_schema_is_up_to_date() -> None:
    assert SCHEMA.read_text() == schema_text(), "run: python -m reports.schema > reports/report.schema.json"


def test_non_finite_values_survive(make_case: Maker) -> None:
    values = ("inf", "-inf", "nan")
    found = [
        QuantityResult(name=value, verdict="drift", elements=1, mismatched=1, max_abs=float(value))
        for value in values
    ]
    report = Report.assemble(
        cases=[make_case("drift", quantities=found)],
        environment={"limit": math.inf, "nested": [{"x": math.nan}]},
    )
    text = report.to_json()
    json.loads(text, parse_constant=pytest.fail)
    again = Report.from_json(text)
    assert [str(quantity.max_abs) for quantity in again.cases[0].quantities] == list(values)
    assert again.environment == {"limit": "inf", "nested": [{"x": "nan"}]}
    assert again.to_json() == text


def test_text_that_is_no_utf8_can_be_saved(make_case: Maker) -> None:
    report = Report.assemble(cases=[make_case(batch="caf\udce9.safetensors")])
    assert Report.from_json(report.to_json()).cases[0].batch == "caf\\udce9.safetensors"


def test_assemble_settles_planted_faults_and_counts_them(make_case: Maker) -> None:
    cases = [make_case(), make_case("drift", "caught"), make_case("match", "refused")]
    report = Report.assemble(cases=cases)
    assert [case.verdict for case in report.cases] == ["match", "caught", "missed"]
    assert (report.verdict, report.exit_status) == ("missed", 1)
    assert (report.planted.caught, report.planted.total) == (1, 2)


@pytest.mark.parametrize(
    "quantities",
    [
        (),
        (QuantityResult(name="loss", verdict="match", elements=0),),
        (QuantityResult(name="loss", verdict="match", elements=4, power=0.0),),
        (QuantityResult(name="loss", verdict="inconclusive", elements=4),),
    ],
)
def test_a_comparison_without_evidence_is_no_match(make_case: Maker, quantities: tuple) -> None:
    report = Report.assemble(cases=[make_case(quantities=quantities)])
    assert report.cases[0].verdict == "inconclusive"
    assert report.exit_status == 3


def test_a_match_beside_a_drifting_quantity_is_a_drift(make_case: Maker) -> None:
    drift = QuantityResult(name="kl", verdict="drift", elements=4, mismatched=1)
    match = QuantityResult(name="loss", verdict="match", elements=4)
    assert Report.assemble(cases=[make_case(quantities=(match, drift))]).exit_status == 1


def test_flags_and_errors_decide(make_case: Maker) -> None:
    error = ReportError(code="contract", message="alpha: expected 0 to 1, got 2")
    assert Report.assemble(errors=[error]).exit_status == 2
    assert Report.assemble(cases=[make_case()], broken=True, errors=[error]).exit_status == 4
    assert Report.assemble(cases=[make_case()], interrupted_by="SIGTERM").exit_status == 143
    for report in (Report.assemble(errors=[error]), Report.assemble(interrupted_by="SIGINT")):
        assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize(
    "wrong",
    [
        {"layout": {"tp": 0, "dp": 1}},
        {"expect": "perhaps"},
        {"verdict": "skipped", "reason": None},
        {"surprise": 1},
        {"seconds": math.nan},
    ],
)
def test_wrong_cases_are_refused(wrong: dict) -> None:
    good = {"name": "a", "op": "b", "layout": Layout(tp=1, dp=1), "batch": "seed", "verdict": "drift"}
    CaseResult(**good)
    with pytest.raises(ValidationError):
        CaseResult(**{**good, **wrong})


def test_a_quantity_may_not_contradict_itself() -> None:
    with pytest.raises(ValidationError, match="expected at most 4 elements, got 5"):
        QuantityResult(name="loss", verdict="drift", elements=4, mismatched=5)
    with pytest.raises(ValidationError, match="expected 0 in a quantity that matches, got 1"):
        QuantityResult(name="loss", verdict="match", elements=4, mismatched=1)


CORRUPT = [
    ("", "an empty text"),
    ("{}", "no grpo-verify report"),
    ("[1, 2]", "expected a JSON object, got a JSON list"),
    ("verdict: match", "line 1 column 1"),
    ('{"schema_version": 2}', "schema_version: expected 1, the only version known here, got 2"),
    ('{"schema_version": true}', "got True"),
    ('{"schema_version": 1, "x": NaN}', "the token NaN"),
    ('{"schema_version": 1}', "verdict: Field required"),
    ('{"schema_version": 1, "x": ' + "9" * 5000 + "}", "JSON numbers"),
    ("[" * 100_000, "deeper nesting"),
]


@pytest.mark.parametrize(("text", "message"), CORRUPT, ids=[message for _, message in CORRUPT])
def test_what_is_no_report_says_why(text: str, message: str) -> None:
    with pytest.raises(ReportFormatError) as raised:
        Report.from_json(text)
    assert str(raised.value).startswith("not a valid report: ")
    assert message in str(raised.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_report_is_refused(rich_report: Report, share: float) -> None:
    text = rich_report.to_json()
    with pytest.raises(ReportFormatError, match=r"line .* column"):
        Report.from_json(text[: int(len(text) * share)])


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("verdict", "match", "verdict: expected drift as the cases say, got match"),
        ("verdict", "refused", "verdict: expected drift as the cases say, got refused"),
        ("verdict", "fine", "verdict: Input should be 'match'"),
        ("exit_status", 0, "exit_status: expected 1 for drift, got 0"),
        ("exit_status", "1", "exit_status: Input should be a valid integer, got '1'"),
        ("planted", {"caught": 7, "total": 7}, "planted: expected 5 of 7 as the cases say, got 7 of 7"),
        ("cases", {}, "cases: Input should be a valid array, got a JSON object of 0"),
        ("extra", 1, "extra: Extra inputs are not permitted, got 1"),
    ],
)
def test_a_doctored_report_is_refused(rich_report: Report, path: str, value: object, message: str) -> None:
    document = json.loads(rich_report.to_json())
    document[path] = value
    with pytest.raises(ReportFormatError) as raised:
        Report.from_json(json.dumps(document))
    assert message in str(raised.value)


def test_a_problem_deep_inside_names_its_place(rich_report: Report) -> None:
    document = json.loads(rich_report.to_json())
    document["cases"][4]["quantities"][1]["first"]["got_bits"] = "40"
    with pytest.raises(ReportFormatError, match=r"cases\[4\]\.quantities\[1\]\.first\.got_bits: .*'40'"):
        Report.from_json(json.dumps(document))


def test_importing_reports_stays_light() -> None:
    heavy = ["torch", "numpy", "cyclopts", "rich", "harness", "loss_ops"]
    code = f"import sys, reports; print(*[name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_rendering_for_a_terminal_needs_no_torch() -> None:
    code = (
        "import sys; from reports import Report, render; render(Report.assemble(), 'terminal');"
        "print(*[name for name in ('torch', 'numpy', 'cyclopts') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_the_schema_module_prints_the_schema() -> None:
    command = [sys.executable, "-W", "error", "-m", "reports.schema"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == schema_text()
