"""A drifting quantity with everything that a diagnosis may hold."""

from reports import QuantityResult, Verdict
from reports.diagnosis import Bin, Diagnosis, HeatMap, RankShare, Shares

DIAGNOSIS = Diagnosis(
    pattern="rounding",
    words="Rounding only: the same terms, summed in another order.",
    stage="per-sequence totals",
    inputs=("token terms",),
    likely=("a row sum that depends on the number of local rows",),
)


def diagnosed(name: str = "per_sequence_policy") -> QuantityResult:
    """Sequences 1 and 3 of four drift, at the end of their tokens."""
    counts = (0, 101, 0, 20)
    rows = ((0, 0, 0), (0, 1, 100), (0, 0, 0), (0, 0, 20))
    ranks = tuple(RankShare(tp=0, dp=dp, mismatched=60 * dp, elements=400) for dp in range(2))
    return QuantityResult(
        name=name,
        verdict=Verdict.DRIFT,
        elements=1200,
        mismatched=121,
        max_ulp=7,
        max_abs=1e-7,
        ulp_histogram=(1, 80, 30, 8),
        not_numbers=2,
        heat_map=HeatMap(token_width=64, rows=rows),
        shares=Shares(
            sequence=tuple(Bin(start=at, stop=at + 1, mismatched=n, elements=300) for at, n in enumerate(counts)),
            token=tuple(Bin(start=64 * at, stop=64 * at + 64, mismatched=at, elements=400) for at in range(3)),
            rank=ranks,
        ),
    )
