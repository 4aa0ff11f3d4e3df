"""The result of a case, made of what all its ranks report. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.comparing.drift import Drift
from harness.diagnosis.evidence import Evidence, gather_evidence
from harness.diagnosis.verdict import diagnose
from harness.planning.planned import PlannedCase
from harness.ranks.case_verdict import case_verdict
from harness.ranks.quantity_result import quantity_result
from harness.ranks.rank_outcome import RankOutcome
from reports.cases import CaseResult, Layout
from reports.verdicts import Expect


def case_result(
    case: PlannedCase,
    outcomes: Sequence[RankOutcome],
    *,
    transport: str,
    power: Mapping[str, float] | None = None,
    digests: Mapping[str, str] | None = None,
    must_show: tuple[str, ...] = (),
    pattern: str | None = None,
    must_say: str | None = None,
) -> CaseResult:
    """Join the ranks' reports. `must_show` names the quantities of which one must drift for a planted fault.

    `pattern` is what the drift of that quantity must look like, `must_say` the field that every rank's refusal
    must name. `power` is the measured chance, by quantity, that another summation order would show on this
    batch, `digests` stand for the baseline's bits.
    """
    quantities = tuple(quantity_result(parts, power or {}, digests or {}) for parts in _by_name(outcomes))
    verdict, reason = case_verdict(outcomes, quantities, case.expect, must_show, pattern, must_say)
    return CaseResult(
        name=case.name,
        op=case.op,
        layout=Layout(tp=case.layout[0], dp=case.layout[1]),
        transport=transport,
        batch=case.batch,
        seed=outcomes[0].seed if outcomes[0].seed is not None else case.seed,
        expect=Expect(case.expect),
        verdict=verdict,
        reason=reason,
        quantities=quantities,
        seconds=max(outcome.seconds for outcome in outcomes),
        notes=tuple(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
        diagnosis=diagnose(_evidence(outcomes), case.layout),
    )


def _evidence(outcomes: Sequence[RankOutcome]) -> dict[str, Evidence]:
    ranks = [((each.tp_rank, each.dp_rank), (*each.stages, *each.drifts)) for each in outcomes]
    return gather_evidence(ranks)


def _by_name(outcomes: Sequence[RankOutcome]) -> Iterable[list[tuple[RankOutcome, Drift]]]:
    found: dict[str, list[tuple[RankOutcome, Drift]]] = {}
    for outcome in outcomes:
        for drift in outcome.drifts:
            found.setdefault(drift.name, []).append((outcome, drift))
    return found.values()
