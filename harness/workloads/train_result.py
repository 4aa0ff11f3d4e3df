"""From what rank 0 compared and what all ranks say to the result of a case. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.workloads.train_plan import TrainCase
from reports.cases import CaseResult, Layout, QuantityResult
from reports.verdicts import Expect, Verdict

if TYPE_CHECKING:
    from harness.workloads.trajectory import TrajectoryComparison

ROUNDING = 1e-5
"""A mistake in what is divided by what moves parameters by more than this; another order of sums does not."""


def train_result(
    case: TrainCase,
    comparison: TrajectoryComparison | None,
    digests: Sequence[tuple[str, ...]],
    error: str | None,
    *,
    transport: str,
    seconds: float,
) -> CaseResult:
    """`digests` are each rank's parameter digests by update: ranks that differ from rank 0 drift as well."""
    quantities = () if comparison is None else _quantities(comparison)
    verdict, reason = (Verdict.REFUSED, error) if error else _verdict(case, comparison, digests)
    notes: tuple[str, ...] = ()
    if verdict in (Verdict.MATCH, Verdict.INCONCLUSIVE) and digests and digests[0]:
        notes = (f"{case.name}: parameters after update {len(digests[0])}: sha256 {digests[0][-1]} on every rank",)
    return CaseResult(
        name=case.name,
        op="training",
        layout=Layout(tp=1, dp=case.degree),
        transport=transport,
        batch=case.settings.workload,
        seed=case.settings.seed,
        expect=Expect(case.expect),
        verdict=verdict,
        reason=reason,
        quantities=quantities,
        seconds=seconds,
        notes=notes,
    )


def _quantities(comparison: TrajectoryComparison) -> tuple[QuantityResult, ...]:
    return tuple(
        QuantityResult(
            name=name,
            verdict=Verdict.DRIFT if tally.mismatched else Verdict.MATCH,
            elements=tally.elements,
            mismatched=tally.mismatched,
            max_ulp=tally.max_ulp,
            max_abs=tally.max_abs,
        )
        for name, tally in comparison.tallies.items()
    )


def _verdict(
    case: TrainCase, comparison: TrajectoryComparison | None, digests: Sequence[tuple[str, ...]]
) -> tuple[Verdict, str | None]:
    apart = _ranks_apart(digests)
    if apart:
        return Verdict.DRIFT, apart
    if comparison is None or comparison.parting is None:
        if case.degree == 1:
            return Verdict.INCONCLUSIVE, "one rank is the baseline itself: runs repeat, but no other was compared"
        if comparison is not None and not comparison.expected.moved:
            return Verdict.INCONCLUSIVE, "no update moved a parameter: equal parameters show nothing"
        return Verdict.MATCH, "equal to the bit" if case.mistake else None
    largest = max(tally.max_abs for tally in comparison.tallies.values())
    if case.mistake and largest <= ROUNDING:
        return (
            Verdict.MISSED if case.expect == "caught" else Verdict.MATCH
        ), f"by rounding at most ({largest:.2g})"
    return Verdict.DRIFT, str(comparison.parting)


def _ranks_apart(digests: Sequence[tuple[str, ...]]) -> str | None:
    for number, (first, *others) in enumerate(zip(*digests, strict=True), 1):
        for rank, other in enumerate(others, 1):
            if other != first:
                return f"first difference: update {number}, between the parameters of ranks 0 and {rank}"
    return None
