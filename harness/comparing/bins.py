"""Counts along one axis or two, in bins of a power-of-two width that merge without loss. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

MOST = 64


class Bins(BaseModel):
    """counts[i] drifting of sizes[i] elements at indices [(first + i) * width, (first + i + 1) * width)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int
    first: int
    counts: tuple[int, ...]
    sizes: tuple[int, ...]


class Cells(BaseModel):
    """rows[r][c] drifting elements at sequences of bin first + r and token positions of bin c."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequence_width: int
    token_width: int
    first: int
    rows: tuple[tuple[int, ...], ...]


def width_for(start: int, stop: int) -> int:
    """The smallest power of two that leaves at most MOST bins over indices [start, stop)."""
    width = 1
    while stop > start and (stop - 1) // width - start // width >= MOST:
        width *= 2
    return width


def merge_bins(parts: Sequence[Bins]) -> Bins:
    """The sum of parts of one axis, in bins as wide as the widest, and wider where they are too many."""
    width = max(part.width for part in parts)
    counts = _summed(_points(part.width, part.first, part.counts, width) for part in parts)
    sizes = _summed(_points(part.width, part.first, part.sizes, width) for part in parts)
    first, last = min(sizes), max(sizes)
    whole = [tuple(values.get(index, 0) for index in range(first, last + 1)) for values in (counts, sizes)]
    joined = Bins(width=width, first=first, counts=whole[0], sizes=whole[1])
    return joined if last - first < MOST else merge_bins([joined, _empty(joined, 2 * width)])


def merge_cells(parts: Sequence[Cells]) -> Cells:
    """The sum of parts, with bins as wide as the widest of each axis, at most MOST rows."""
    token_width = max(part.token_width for part in parts)
    width = max(part.sequence_width for part in parts)
    while True:
        bins = [(part.first + r) * part.sequence_width // width for part in parts for r in range(len(part.rows))]
        if max(bins) - min(bins) < MOST:
            break
        width *= 2
    found = [[0] * _columns(parts, token_width) for _ in range(max(bins) - min(bins) + 1)]
    for part in parts:
        for r, row in enumerate(part.rows):
            target = found[(part.first + r) * part.sequence_width // width - min(bins)]
            for c, count in enumerate(row):
                target[c * part.token_width // token_width] += count
    return Cells(
        sequence_width=width, token_width=token_width, first=min(bins), rows=tuple(tuple(row) for row in found)
    )


def _columns(parts: Sequence[Cells], token_width: int) -> int:
    return max((len(part.rows[0]) - 1) * part.token_width // token_width + 1 for part in parts)


def _empty(like: Bins, width: int) -> Bins:
    return Bins(width=width, first=like.first * like.width // width, counts=(0,), sizes=(0,))


def _points(width: int, first: int, values: Iterable[int], wider: int) -> Iterable[tuple[int, int]]:
    return (((first + index) * width // wider, value) for index, value in enumerate(values))


def _summed(parts: Iterable[Iterable[tuple[int, int]]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for part in parts:
        for index, value in part:
            found[index] = found.get(index, 0) + value
    return found
