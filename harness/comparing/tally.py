"""What one rank counted of one drifting quantity: plain data that merges across ranks. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from harness.comparing.bins import Bins, Cells, merge_bins, merge_cells

AnyPart = TypeVar("AnyPart")
FLOAT32_EPS = 2.0**-23
LOW_PRECISION = 1e-6
"""A dtype with a larger eps rounds on its own: there a difference is a flip of the last place."""


class Moments(BaseModel):
    """Number, sum, sum of squares, least and greatest of some values, each value measured from `base`."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    base: float = 0.0
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    @property
    def mean(self) -> float:
        """The mean value, `base` included."""
        return self.base + (self.total / self.count if self.count else 0.0)

    @property
    def spread(self) -> float:
        """The standard deviation."""
        if not self.count:
            return 0.0
        return math.sqrt(max(0.0, self.squares / self.count - (self.total / self.count) ** 2))


class Tally(BaseModel):
    """Counts over the elements that differ, of one quantity on one rank or of all ranks together.

    `ulps[k]`: ULP distances of k binary digits; `not_numbers`: one side is a NaN; `non_finite`: the candidate is
    not finite where the baseline is, first at `first_non_finite`. `factor`: got / expected where both are normal
    numbers, measured from 1; `offset`: got - expected. `group_factors`: (group size, least, greatest factor).
    `relative`: the largest |got - expected| over the larger of |expected| and the scale of its row. `rows_up`
    and `rows_down`: slots whose values grew and shrank in magnitude. `masked` and `boundary`: elements in masked
    slots and where the ratio lies on a clip bound. Of one number a sequence, `local`: equal to the advantage over
    the rank's own part of the group, which is another than the right one in `local_wanted` sequences.
    `bfloat16`, `float16`: values of the candidate that such a number could hold. `moved`: (s, r) where sequence s
    shows what was expected of sequence r. `eps`: the dtype's own. `extent`: the longest reduction behind it.
    `gross`: the same of those elements alone that no rounding explains.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    mismatched: int
    ulps: tuple[int, ...] = ()
    not_numbers: int = 0
    non_finite: int = 0
    first_non_finite: tuple[int, ...] | None = None
    zeroed: int = 0
    factor: Moments = Moments(base=1.0)
    offset: Moments = Moments()
    group_factors: tuple[tuple[int, float, float], ...] = ()
    relative: float = 0.0
    rows_up: int = 0
    rows_down: int = 0
    masked: int = 0
    boundary: int = 0
    local: int = 0
    local_wanted: int = 0
    bfloat16: int = 0
    float16: int = 0
    moved: tuple[tuple[int, int], ...] = ()
    eps: float = 0.0
    extent: int = 1
    sequence: Bins | None = None
    token: Bins | None = None
    tile: Bins | None = None
    cells: Cells | None = None
    gross: Tally | None = None

    @property
    def tolerance(self) -> float:
        """The largest `relative` that another order of the same sums explains."""
        return tolerance(self.eps, self.extent)


def tolerance(eps: float, extent: int) -> float:
    """What float32 sums of `extent` terms may differ by, relative to their scale; one place of a coarser dtype."""
    own = eps if eps > LOW_PRECISION else 0.0
    return 1.01 * own + FLOAT32_EPS * (32 + 4 * math.sqrt(extent))


def merge(parts: Sequence[Tally]) -> Tally:
    """The tally of a whole quantity from those of its distinct parts."""
    if len(parts) == 1:
        return parts[0]
    names = ("mismatched", "not_numbers", "non_finite", "zeroed", "rows_up", "rows_down", "masked", "boundary",
             "local", "local_wanted", "bfloat16", "float16")  # fmt: skip
    counts = {name: sum(getattr(part, name) for part in parts) for name in names}
    length = max(len(part.ulps) for part in parts)
    firsts = [part.first_non_finite for part in parts if part.first_non_finite is not None]
    return Tally(
        **counts,
        ulps=tuple(sum(part.ulps[k] for part in parts if k < len(part.ulps)) for k in range(length)),
        first_non_finite=min(firsts, default=None),
        factor=merge_moments([part.factor for part in parts]),
        offset=merge_moments([part.offset for part in parts]),
        group_factors=merge_groups(each for part in parts for each in part.group_factors),
        relative=_worst([part.relative for part in parts]),
        moved=tuple(dict.fromkeys(pair for part in parts for pair in part.moved)),
        eps=max(part.eps for part in parts),
        extent=max(part.extent for part in parts),
        sequence=_merged(merge_bins, [part.sequence for part in parts]),
        token=_merged(merge_bins, [part.token for part in parts]),
        tile=_merged(merge_bins, [part.tile for part in parts]),
        cells=_merged(merge_cells, [part.cells for part in parts]),
        gross=_merged(merge, [part.gross for part in parts]),
    )


def _worst(values: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)


def _merged(merge_parts: Callable[[list[AnyPart]], AnyPart], parts: Iterable[AnyPart | None]) -> AnyPart | None:
    known = [part for part in parts if part is not None]
    return merge_parts(known) if known else None


def merge_moments(parts: Sequence[Moments]) -> Moments:
    """The moments of all values of some parts with one base."""
    return Moments(
        base=parts[0].base,
        count=sum(part.count for part in parts),
        total=sum(part.total for part in parts),
        squares=sum(part.squares for part in parts),
        low=min(part.low for part in parts),
        high=max(part.high for part in parts),
    )


def merge_groups(parts: Iterable[tuple[int, float, float]]) -> tuple[tuple[int, float, float], ...]:
    """The least and the greatest factor of each group size, by size."""
    found: dict[int, tuple[float, float]] = {}
    for size, low, high in parts:
        known = found.get(size, (low, high))
        found[size] = (min(low, known[0]), max(high, known[1]))
    return tuple((size, *span) for size, span in sorted(found.items()))
