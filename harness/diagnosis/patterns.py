"""Patterns fitted to the tally of one quantity: what all its differing elements have in common. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from harness.comparing.tally import FLOAT32_EPS, LOW_PRECISION, Moments, Tally

STD_TOLERANCE = 1e-3
LEAST_ROWS = 8


class Pattern(StrEnum):
    """What a drift looks like."""

    NON_FINITE = "non-finite"
    MASKED = "only masked slots"
    MOVED = "sequences moved"
    STD = "std convention"
    OFFSET = "constant offset"
    BOUNDARY = "only at the clip boundary"
    ZERO = "zero where a value is expected"
    FACTOR = "constant factor"
    RANK_FACTOR = "a factor per rank"
    DISAGREE = "ranks hold different values"
    LOWER = "lower precision"
    ROUNDING = "rounding only"
    LOCAL_GROUPS = "each rank's own part of a group"
    RANK = "only some ranks"
    SEQUENCES = "only some sequences"
    UNKNOWN = "no known pattern"


@dataclass(frozen=True)
class Fit:
    """A pattern with its number: the factor, the offset, or None."""

    pattern: Pattern
    value: float | None = None
    detail: str = ""

    def __str__(self) -> str:
        number = "" if self.value is None else f" {self.value:.6g}"
        return f"{self.pattern.value}{number}{self.detail}"


def fit(tally: Tally) -> Fit:
    """The first pattern, strongest first, that holds for every differing element that no rounding explains.

    Where rounding could explain them all, they may still share a factor, or be shifted one way.
    """
    if tally.gross is not None:
        return fit_all(tally.gross)
    return _factor_of_many(tally) or _rounding(tally) or Fit(Pattern.UNKNOWN)


def fit_all(tally: Tally) -> Fit:
    """The first pattern that holds for every element of the tally."""
    for rule in RULES:
        found = rule(tally)
        if found is not None:
            return found
    return Fit(Pattern.UNKNOWN)


def _non_finite(tally: Tally) -> Fit | None:
    if not (tally.non_finite or tally.not_numbers):
        return None
    place = tally.first_non_finite
    where = f", first at {list(place)}" if place else ""
    return Fit(Pattern.NON_FINITE, detail=where)


def _masked(tally: Tally) -> Fit | None:
    return Fit(Pattern.MASKED) if tally.masked == tally.mismatched else None


def _moved(tally: Tally) -> Fit | None:
    if not tally.moved or len(tally.moved) != tally.mismatched:
        return None
    return Fit(Pattern.MOVED, detail=f": {moves(tally.moved)}")


def moves(pairs: tuple[tuple[int, int], ...]) -> str:
    """Pairs that changed places, and sequences that show another's value, in words."""
    held = dict(pairs)
    swapped = [(s, r) for s, r in pairs if s < r and held.get(r) == s]
    rest = [(s, r) for s, r in pairs if held.get(r) != s]
    words = [f"{s} and {r} swapped" for s, r in swapped]
    words += [f"{s} shows the value of {r}" for s, r in rest]
    shown = ", ".join(words[:8])
    return f"{shown} and {len(words) - 8} more" if len(words) > 8 else shown


def _boundary(tally: Tally) -> Fit | None:
    return Fit(Pattern.BOUNDARY) if tally.boundary == tally.mismatched else None


def _zero(tally: Tally) -> Fit | None:
    return Fit(Pattern.ZERO) if tally.zeroed == tally.mismatched else None


def _std(tally: Tally) -> Fit | None:
    spans = [span for span in tally.group_factors if span[0] > 1]
    if not spans or len(spans) != len(tally.group_factors):
        return None
    for power, words in (
        (0.5, "sample where population is expected"),
        (-0.5, "population where sample is expected"),
    ):
        wanted = [((size - 1) / size) ** power for size, _, _ in spans]
        pairs = zip(spans, wanted, strict=True)
        if all(_near(low, value) and _near(high, value) for (_, low, high), value in pairs):
            sizes = ", ".join(f"{value:.6g} in groups of {size}" for (size, _, _), value in
                              zip(spans, wanted, strict=True))  # fmt: skip
            return Fit(Pattern.STD, detail=f" ({words}): factor {sizes}")
    return None


def _near(value: float, wanted: float) -> bool:
    # In large groups the two conventions are close to each other: stay far closer to one than to the other.
    return abs(value - wanted) <= min(STD_TOLERANCE, 0.1 * abs(1 - wanted))


def _factor(tally: Tally) -> Fit | None:
    if tally.factor.count < tally.mismatched * 0.5 or not is_constant_factor(tally.factor, tally.eps):
        return None
    if tally.factor.count == 1 and not _is_whole(tally.factor.mean):
        return None
    return Fit(Pattern.FACTOR, tally.factor.mean)


def _factor_of_many(tally: Tally) -> Fit | None:
    """Roundings of one coefficient shift a whole row alike: a factor that small needs many rows."""
    return _factor(tally) if tally.rows_up + tally.rows_down >= LEAST_ROWS else None


def is_constant_factor(factor: Moments, eps: float) -> bool:
    """Whether all factors lie close around one that is not 1, by far more than roundings explain."""
    away = abs(factor.mean - 1)
    beyond_rounding = away > max(32 * FLOAT32_EPS, 2 * eps)
    return factor.count > 0 and beyond_rounding and factor.spread <= 0.05 * away + 4 * eps


def _is_whole(value: float) -> bool:
    if not math.isfinite(value) or value == 0:
        return False
    larger = max(abs(value), 1 / abs(value))
    return 1.5 < larger < 4096 and abs(larger - round(larger)) <= 1e-5 * larger


def _lower(tally: Tally) -> Fit | None:
    if not 0 < tally.eps < LOW_PRECISION or tally.zeroed * 2 > tally.mismatched:
        return None
    # Small powers of two and zeros are numbers of every precision; a sum of many terms seldom is.
    if tally.relative <= tally.tolerance:
        return None
    for name, count in (("bfloat16", tally.bfloat16), ("float16", tally.float16)):
        if count == tally.mismatched:
            return Fit(Pattern.LOWER, detail=f": every differing value is a {name} number")
    return None


def _rounding(tally: Tally) -> Fit | None:
    if tally.eps == 0 or not tally.relative <= tally.tolerance:
        return None
    nonzero = tally.factor.count
    if tally.eps > LOW_PRECISION and nonzero and _is_shifted(tally, 2 * tally.eps / 8):
        return None
    return None if _is_shifted(tally, 8 * FLOAT32_EPS) else Fit(Pattern.ROUNDING)


def _is_shifted(tally: Tally, least: float) -> bool:
    """Rounding moves some slots up and others down; a value that is wrong moves all one way."""
    rows = tally.rows_up + tally.rows_down
    one_sided = rows >= LEAST_ROWS and min(tally.rows_up, tally.rows_down) <= 0.02 * rows
    return one_sided and abs(tally.factor.mean - 1) > least


RULES: tuple[Callable[[Tally], Fit | None], ...] = (
    _non_finite,
    _masked,
    _moved,
    _boundary,
    _zero,
    _std,
    _factor,
    _lower,
    _rounding,
)


def fit_local_groups(tally: Tally) -> Fit | None:
    """Everywhere what the rank's own part of the group gives alone, for advantages."""
    is_local = tally.local == tally.mismatched == tally.local_wanted > 0
    return Fit(Pattern.LOCAL_GROUPS) if is_local else None


def fit_offset(tally: Tally) -> Fit | None:
    """A constant difference, for log-probabilities."""
    offset = tally.offset
    if offset.count < tally.mismatched or tally.not_numbers or tally.non_finite:
        return None
    if abs(offset.mean) < 1e-4 or offset.spread > 0.01 * abs(offset.mean) + 1e-5:
        return None
    return Fit(Pattern.OFFSET, offset.mean)
