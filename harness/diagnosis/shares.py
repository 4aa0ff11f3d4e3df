"""Where the drifting elements of a quantity lie, as a report holds it. No torch."""

from __future__ import annotations

from harness.comparing.bins import Bins
from harness.comparing.tally import Tally
from harness.diagnosis.evidence import Evidence
from reports.diagnosis import Bin, HeatMap, RankShare, Shares


def shares(evidence: Evidence) -> Shares | None:
    """Drifting elements by sequence, token position, tile and owner rank; every rank that took part is named."""
    tally = evidence.tally
    if tally is None:
        return None
    return Shares(
        sequence=_bins(tally.sequence),
        token=_bins(tally.token),
        tile=_bins(tally.tile),
        rank=tuple(
            RankShare(tp=place[0], dp=place[1], mismatched=drift.mismatched, elements=drift.elements)
            for place, drift in sorted(evidence.seen, key=lambda each: each[0][::-1])
        ),
    )


def _bins(bins: Bins | None) -> tuple[Bin, ...]:
    if bins is None:
        return ()
    return tuple(
        Bin(
            start=(bins.first + index) * bins.width,
            stop=(bins.first + index + 1) * bins.width,
            mismatched=count,
            elements=size,
        )
        for index, (count, size) in enumerate(zip(bins.counts, bins.sizes, strict=True))
    )


def heat_map(tally: Tally) -> HeatMap | None:
    """Drifting elements by sequence and token position; None for a quantity without positions."""
    cells = tally.cells
    if cells is None:
        return None
    return HeatMap(
        sequence_start=cells.first * cells.sequence_width,
        sequence_width=cells.sequence_width,
        token_width=cells.token_width,
        rows=cells.rows,
    )
