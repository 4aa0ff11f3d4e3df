"""The report: the one document that a run, a comparison or a snapshot check ends with."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from reports.cases import CaseResult, FirstDrift, Layout, QuantityResult, Rank, Record
from reports.fields import Count, JsonObject, Seconds, Text
from reports.loading import SCHEMA_VERSION, ReportFormatError, check_is_report, explain
from reports.thinning import thinned
from reports.verdicts import ReportVerdict, Signal, count_planted, exit_status, report_verdict
from reports.writing import report_text

__all__ = [
    "SCHEMA_VERSION",
    "CaseResult",
    "FirstDrift",
    "Layout",
    "Planted",
    "QuantityResult",
    "Rank",
    "Report",
    "ReportError",
    "ReportFormatError",
]

ExitStatus = Annotated[int, Field(json_schema_extra={"enum": [0, 1, 2, 3, 4, 129, 130, 143]})]


class Planted(Record):
    """How many planted faults were seen, of all in the plan (skipped and inconclusive ones included)."""

    caught: Count
    total: Count


class ReportError(Record):
    """One reason why a request was refused, with its stable code."""

    code: Text
    message: Text


class Report(Record):
    """A finished run. Build it with `assemble`: a verdict milder than the cases allow is refused.

    `contract` is empty and `numeric_fingerprint` None when a request was refused before there was a
    contract. `environment` is free; `device` and `device_name` are shown in the header of a rendered report.
    `baseline` says in words what every case was compared with.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    verdict: ReportVerdict
    exit_status: ExitStatus
    command: tuple[Text, ...] = ()
    environment: JsonObject = Field(default_factory=dict)
    contract: JsonObject = Field(default_factory=dict)
    numeric_fingerprint: Text | None = None
    planted: Planted
    cases: tuple[CaseResult, ...] = ()
    baseline: Text = "1x1"
    preflight: Text | None = None
    culprit: Text | None = None
    errors: tuple[ReportError, ...] = ()
    notes: tuple[Text, ...] = ()
    times: dict[str, Seconds] = Field(default_factory=dict)

    @classmethod
    def assemble(
        cls,
        *,
        cases: Iterable[CaseResult] = (),
        interrupted_by: Signal | None = None,
        broken: bool = False,
        errors: Iterable[ReportError] = (),
        command: Iterable[str] = (),
        environment: Mapping[str, object] | None = None,
        contract: Mapping[str, object] | None = None,
        numeric_fingerprint: str | None = None,
        baseline: str = "1x1",
        preflight: str | None = None,
        culprit: str | None = None,
        notes: Iterable[str] = (),
        times: Mapping[str, float] | None = None,
    ) -> Self:
        """Settle every case and compute verdict, exit status and planted counts from them and the flags."""
        settled, errors = tuple(thinned([case.settled() for case in cases])), tuple(errors)
        verdict = report_verdict(settled, interrupted_by=interrupted_by, broken=broken, refused=bool(errors))
        caught, total = count_planted(settled)
        fields = {
            "verdict": verdict,
            "exit_status": exit_status(verdict, interrupted_by),
            "command": tuple(command),
            "environment": dict(environment or {}),
            "contract": dict(contract or {}),
            "numeric_fingerprint": numeric_fingerprint,
            "planted": Planted(caught=caught, total=total),
            "cases": settled,
            "baseline": baseline,
            "preflight": preflight,
            "culprit": culprit,
            "errors": errors,
            "notes": tuple(notes),
            "times": dict(times or {}),
        }
        return cls.model_validate(fields)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Load a saved report; raise ReportFormatError if it is none, or contradicts itself."""
        check_is_report(text)
        try:
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise explain(error) from error

    def to_json(self) -> str:
        """Return strict JSON in a stable key order; non-finite floats are strings."""
        head = self.model_copy(update={"cases": ()}).model_dump(mode="json")
        return report_text(head, self.cases)

    @model_validator(mode="after")
    def _agrees_with_its_cases(self) -> Self:
        for index, case in enumerate(self.cases):
            if (settled := case.settled()) is not case:
                raise ValueError(f"cases[{index}].verdict: expected {settled.verdict}, got {case.verdict}")
        caught, total = count_planted(self.cases)
        if (self.planted.caught, self.planted.total) != (caught, total):
            got = f"{self.planted.caught} of {self.planted.total}"
            raise ValueError(f"planted: expected {caught} of {total} as the cases say, got {got}")
        self._check_verdict()
        return self

    def _check_verdict(self) -> None:
        least = report_verdict(self.cases, refused=bool(self.errors))
        # Only the run itself knows that it broke or was interrupted; all else follows from the cases.
        stopped = self.verdict in (ReportVerdict.FAILED, ReportVerdict.INTERRUPTED)
        if self.verdict is not least and not (stopped and self.verdict.severity > least.severity):
            raise ValueError(f"verdict: expected {least} as the cases say, got {self.verdict}")
        signals: tuple[Signal, ...] = get_args(Signal)
        allowed = {exit_status(self.verdict, signal) for signal in signals}
        if self.exit_status not in allowed:
            expected = " or ".join(map(str, sorted(allowed)))
            raise ValueError(f"exit_status: expected {expected} for {self.verdict}, got {self.exit_status}")
