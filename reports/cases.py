"""What one case showed: its layout, each compared quantity and the first element that drifted."""

from functools import lru_cache
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from reports.diagnosis import Diagnosis, HeatMap, Shares, optional
from reports.fields import Bits, Count, NamedFloat, Seconds, Share, Text
from reports.verdicts import Expect, Verdict, settle


class Record(BaseModel):
    """A frozen part of a report that accepts no unknown field."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Layout(Record):
    """A split of the work into tp vocabulary shards times dp sequence shards."""

    tp: int = Field(ge=1)
    dp: int = Field(ge=1)

    def __str__(self) -> str:
        return f"{self.tp}x{self.dp}"


class Rank(Record):
    """A rank's coordinates on the mesh."""

    tp: Count
    dp: Count

    def __str__(self) -> str:
        return f"tp={self.tp} dp={self.dp}"


class FirstDrift(Record):
    """The first drifting element, in global coordinates; None where the quantity has no such dim."""

    sequence: Count | None = None
    token: Count | None = None
    column: Count | None = None
    owner: Rank | None = None
    expected: Text
    got: Text
    expected_bits: Bits
    got_bits: Bits


class QuantityResult(Record):
    """The comparison of one tensor over raw bits.

    `nonzero_share` is the share of baseline elements that are not zero; `power` the measured chance that
    a changed summation order would have shown (None for integers, which need none).

    `ulp_histogram[k]` counts drifting elements whose ULP distance has k binary digits: 0 is +0 against -0, 1 a
    distance of 1, 2 one of 2 or 3, and so on; `not_numbers` those where one side is a NaN, which are in no bucket.
    `baseline_digest` stands for the baseline's raw bits: equal digests of two reports are equal bits.
    """

    name: Text
    verdict: Verdict
    elements: Count
    mismatched: Count = 0
    max_ulp: Count = 0
    max_abs: NamedFloat = 0.0
    first: FirstDrift | None = None
    sequences: tuple[Count, ...] = ()
    pattern: Text | None = None
    nonzero_share: Share | None = None
    power: Share | None = None
    baseline_digest: Text | None = optional()
    ulp_histogram: tuple[Count, ...] = optional(())
    not_numbers: Count = optional(0)
    shares: Shares | None = optional()
    heat_map: HeatMap | None = optional()

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        if self.mismatched > self.elements:
            raise ValueError(f"mismatched: expected at most {self.elements} elements, got {self.mismatched}")
        if self.verdict is Verdict.MATCH and self.mismatched:
            raise ValueError(f"mismatched: expected 0 in a quantity that matches, got {self.mismatched}")
        return self

    @property
    def is_evidence(self) -> bool:
        """Whether it matches and could have shown a difference: not empty, and not without power."""
        return self.verdict is Verdict.MATCH and self.elements > 0 and self.power != 0


class CaseResult(Record):
    """One comparison of a candidate with the baseline: what was asked, what was expected, what came out."""

    name: Text
    op: Text
    layout: Layout
    transport: Text | None = None
    batch: Text
    seed: int | None = None
    expect: Expect = Expect.MATCH
    verdict: Verdict
    reason: Text | None = None
    quantities: tuple[QuantityResult, ...] = ()
    seconds: Seconds | None = None
    notes: tuple[Text, ...] = ()
    diagnosis: Diagnosis | None = optional()

    @field_validator("quantities")
    @classmethod
    def _share_what_is_equal(cls, quantities: tuple[QuantityResult, ...]) -> tuple[QuantityResult, ...]:
        return tuple(map(_shared, quantities))

    @model_validator(mode="after")
    def _skips_have_a_reason(self) -> Self:
        if self.verdict is Verdict.SKIPPED and not self.reason:
            raise ValueError("reason: expected why the case was skipped, got nothing")
        return self

    @property
    def drifted(self) -> tuple[QuantityResult, ...]:
        """The quantities that drifted."""
        return tuple(quantity for quantity in self.quantities if quantity.verdict is Verdict.DRIFT)

    def settled(self) -> Self:
        """Return the case with the verdict its expectation and its quantities allow.

        A match that compared nothing, or nothing with power, is inconclusive; a match beside a quantity
        that drifted is a drift; a planted fault that drifts is caught and one that matches is missed.
        """
        verdict = settle(self.expect, self._observed())
        return self if verdict is self.verdict else self.model_copy(update={"verdict": verdict})

    def _observed(self) -> Verdict:
        if self.verdict is not Verdict.MATCH:
            return self.verdict
        if self.drifted:
            return Verdict.DRIFT
        has_evidence = any(quantity.is_evidence for quantity in self.quantities)
        return Verdict.MATCH if has_evidence or self.expect.is_planted else Verdict.INCONCLUSIVE


def _shared(quantity: QuantityResult) -> QuantityResult:
    # Most quantities of a large report are equal and match: one object then serves thousands of cases.
    return _known(quantity) if quantity.verdict is Verdict.MATCH else quantity


@lru_cache(maxsize=1024)
def _known(quantity: QuantityResult) -> QuantityResult:
    return quantity
