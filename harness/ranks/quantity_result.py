"""The result of one quantity, joined of what all ranks saw of it. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from harness.comparing.drift import Drift
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.patterns import Pattern
from harness.diagnosis.shares import heat_map, shares
from harness.ranks.rank_outcome import RankOutcome
from reports.cases import FirstDrift, QuantityResult, Rank
from reports.verdicts import Verdict


def quantity_result(
    parts: list[tuple[RankOutcome, Drift]], power: Mapping[str, float], digests: Mapping[str, str]
) -> QuantityResult:
    """Join what the ranks of `parts` saw; `power` and `digests`, by quantity, as for `case_result`."""
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
            "pattern": None if evidence.fit.pattern is Pattern.UNKNOWN else str(evidence.fit),
            **_counts(evidence),
        }
    )


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
