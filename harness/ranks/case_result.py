"""The result of a case, made of what all its ranks report. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from harness.comparing.drift import Drift
from harness.diagnosis.patterns import Pattern
from harness.diagnosis.shares import heat_map, shares
from harness.diagnosis.verdict import Evidence, diagnose, gather_evidence
from harness.planning.planned import PlannedCase
from harness.ranks.rank_outcome import RankOutcome
from reports.cases import CaseResult, FirstDrift, Layout, QuantityResult, Rank
from reports.verdicts import Expect, Verdict

# A constant factor must hold for every element up to a few roundings of the gradient's dtype.
FACTOR_TOLERANCE = 1e-2
FACTOR_IS_ONE = 1e-3


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
    must name. `power` is the measured chance, by quantity,
    that another summation order would show on this batch, `digests` stand for the baseline's bits.
    """
    quantities = tuple(_quantity(parts, power or {}, digests or {}) for parts in _by_name(outcomes))
    verdict, reason = _verdict(outcomes, quantities)
    if verdict is Verdict.DRIFT and must_show:
        verdict, reason = _judge_fault(quantities, must_show, pattern)
    if case.expect == "refused":
        verdict, reason = _judge_disagreement(outcomes, verdict, reason, must_say)
    if verdict is Verdict.MATCH and case.expect == "match" and (hollow := _hollow(outcomes, quantities)):
        verdict, reason = Verdict.INCONCLUSIVE, hollow
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


def _verdict(outcomes: Sequence[RankOutcome], quantities: Sequence[QuantityResult]) -> tuple[Verdict, str | None]:
    errors = list(dict.fromkeys(outcome.error for outcome in outcomes if outcome.error))
    if errors:
        count = sum(outcome.error is not None for outcome in outcomes)
        alike = count == len(outcomes) and len(errors) == 1
        words = errors[0][1] if alike else f"{count} of {len(outcomes)} ranks: " + " | ".join(e[1] for e in errors)
        return Verdict.REFUSED, words
    for outcome in outcomes:
        if outcome.inconclusive:
            return Verdict.INCONCLUSIVE, outcome.inconclusive
    if any(quantity.mismatched for quantity in quantities):
        return Verdict.DRIFT, None
    return Verdict.MATCH, None


def _hollow(outcomes: Sequence[RankOutcome], quantities: Sequence[QuantityResult]) -> str | None:
    """Why equal bits prove nothing here: counts alone, a gradient of zeros, or a baseline of NaN; else None."""
    drifts = [drift for outcome in outcomes for drift in outcome.drifts]
    broken = sorted({drift.name for drift in drifts if drift.non_finite})
    if broken:
        return f"the baseline holds NaN or infinity in {', '.join(broken)}: equal ones prove nothing"
    floating = {drift.name for drift in drifts if drift.floating}
    verdicts = {quantity.verdict for quantity in quantities if quantity.name in floating}
    if verdicts <= {Verdict.INCONCLUSIVE}:
        return "no floating quantity could have shown a difference on this batch"
    if any(quantity.name == "grad_policy_logits" and not quantity.nonzero_share for quantity in quantities):
        return "the gradient is zero everywhere: equal zeros prove nothing"
    return None


def _judge_disagreement(
    outcomes: Sequence[RankOutcome], verdict: Verdict, reason: str | None, must_say: str | None
) -> tuple[Verdict, str | None]:
    """A planted disagreement is seen where every rank refuses it, in preflight, by the field that differs."""
    errors = {outcome.error for outcome in outcomes}
    (error,) = errors if len(errors) == 1 else (None,)
    if verdict is Verdict.REFUSED and error is not None:
        code, words = error
        if code == "preflight" and (must_say or "") in words:
            return verdict, reason
    return Verdict.MISSED, f"not every rank refused it for {must_say}: {reason or verdict.value}"


def _judge_fault(
    quantities: Sequence[QuantityResult], must_show: tuple[str, ...], pattern: str | None
) -> tuple[Verdict, str | None]:
    shown = [each for each in quantities if each.mismatched and each.name in must_show]
    if not shown:
        return Verdict.MISSED, f"none of {', '.join(must_show)} drifted, which this fault must move"
    if pattern and all(each.pattern != pattern for each in shown):
        return Verdict.MISSED, f"seen, but not as {pattern!r}: {shown[0].pattern or 'no pattern'}"
    seen = f"seen in {', '.join(each.name for each in shown)}"
    return Verdict.CAUGHT, f"{seen}: {pattern}" if pattern else seen


def _quantity(
    parts: list[tuple[RankOutcome, Drift]], power: Mapping[str, float], digests: Mapping[str, str]
) -> QuantityResult:
    drifts = [drift for _, drift in parts]
    distinct = {drift.shard: drift for drift in drifts}.values()
    elements = sum(drift.elements for drift in distinct)
    nonzero = sum(drift.nonzero for drift in distinct)
    seen = [(outcome, drift) for outcome, drift in parts if drift.mismatched]
    chance = 0.0 if drifts[0].floating and nonzero == 0 else power.get(drifts[0].name)
    powerless = chance == 0.0 and not seen
    result = QuantityResult(
        name=drifts[0].name,
        verdict=Verdict.DRIFT if seen else Verdict.INCONCLUSIVE if powerless else Verdict.MATCH,
        elements=elements,
        nonzero_share=nonzero / elements if elements else 0.0,
        power=chance,
        baseline_digest=digests.get(drifts[0].name),
    )
    return _with_drift(result, parts, seen) if seen else result


def _mismatched(drifts: Sequence[Drift]) -> int:
    """Differing elements of the whole quantity: of each part the most that a holder of it saw, added up."""
    worst: dict[tuple[int, ...], int] = {}
    for drift in drifts:
        worst[drift.shard] = max(drift.mismatched, worst.get(drift.shard, 0))
    return sum(worst.values())


def _with_drift(
    result: QuantityResult, parts: list[tuple[RankOutcome, Drift]], seen: list[tuple[RankOutcome, Drift]]
) -> QuantityResult:
    drifts = [drift for _, drift in seen]
    evidence = Evidence(result.name, tuple(((o.tp_rank, o.dp_rank), drift) for o, drift in parts))
    owner, first = min(seen, key=lambda pair: (pair[1].first is None, pair[1].first or ()))
    sizes = [drift.max_abs for drift in drifts]
    return result.model_copy(
        update={
            "mismatched": _mismatched(drifts),
            "max_ulp": max(drift.max_ulp for drift in drifts),
            "max_abs": math.nan if any(map(math.isnan, sizes)) else max(sizes),
            "first": _first(owner, first),
            "sequences": tuple(sorted({s for drift in drifts for s in drift.sequences})),
            "pattern": _pattern(evidence, result),
            **_counts(evidence),
        }
    )


def _pattern(evidence: Evidence, result: QuantityResult) -> str | None:
    if evidence.tally is None:
        drifts = [drift for _, drift in evidence.drifted]
        return pattern_of(drifts, result.nonzero_share or 0.0, result.elements)
    return None if evidence.fit.pattern is Pattern.UNKNOWN else str(evidence.fit)


def _counts(evidence: Evidence) -> dict[str, object]:
    tally = evidence.tally
    if tally is None:
        return {}
    counts = {"ulp_histogram": tally.ulps, "not_numbers": tally.not_numbers}
    return {**counts, "shares": shares(evidence), "heat_map": heat_map(tally)}


def _first(owner: RankOutcome, drift: Drift) -> FirstDrift:
    place: tuple[int | None, ...] = (*(drift.first or ()), None, None, None)
    if not drift.by_sequence:
        place = (None, None, None)
    return FirstDrift(
        sequence=place[0],
        token=place[1],
        column=place[2],
        owner=Rank(tp=owner.tp_rank, dp=owner.dp_rank),
        expected=drift.expected,
        got=drift.got,
        expected_bits=drift.expected_bits,
        got_bits=drift.got_bits,
    )


def pattern_of(drifts: Sequence[Drift], nonzero_share: float, elements: int) -> str | None:
    """What all differing elements have in common, in words: zeros, a constant factor, or nothing known."""
    mismatched = _mismatched(drifts)
    if all(drift.zeroed == drift.mismatched for drift in drifts):
        return "zero where a value is expected"
    ratios = [drift.ratio for drift in drifts]
    if any(ratio is None for ratio in ratios) or mismatched < round(nonzero_share * elements):
        return None
    low, high = min(r[0] for r in ratios if r), max(r[1] for r in ratios if r)
    middle = (low + high) / 2
    if abs(middle - 1) < FACTOR_IS_ONE or high - low > FACTOR_TOLERANCE * abs(middle):
        return None
    return f"constant factor {middle:.6g}"
