"""Shard bounds: contiguous half-open ranges that partition [0, end) in rank order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from grpo_contract.errors import Problem

Bounds = tuple[tuple[int, int], ...]


def even_bounds(count: int, degree: int) -> Bounds:
    """Split `count` items over `degree` ranks as even as they go; the first ranks take one more."""
    small, extra = divmod(count, degree)
    starts = [rank * small + min(rank, extra) for rank in range(degree + 1)]
    return tuple(pairwise(starts))


def bounds_problems(
    bounds: Bounds, degree: int, field: str, problem: Callable[[str, str, object, object], Problem]
) -> list[Problem]:
    """Gaps, overlaps, empty shards, and a number of shards that is not the degree."""
    found = []
    if len(bounds) != degree:
        found.append(problem("shards", field, f"{degree} shards, one per rank", f"{len(bounds)} shards {bounds}"))
    expected_start = 0
    for rank, (start, stop) in enumerate(bounds):
        place = f"{field}[{rank}]"
        if start > expected_start:
            found.append(problem("gap", place, f"start {expected_start} (no gap)", f"({start}, {stop})"))
        if start < expected_start:
            found.append(problem("overlap", place, f"start {expected_start} (no overlap)", f"({start}, {stop})"))
        if stop <= start:
            found.append(problem("empty", place, "a shard that is not empty", f"({start}, {stop})"))
        expected_start = max(expected_start, stop)
    return found


def end_problem(
    bounds: Bounds, end: int, field: str, problem: Callable[[str, str, object, object], Problem]
) -> list[Problem]:
    """Bounds that do not reach, or that pass, the end of what they partition."""
    if not bounds or bounds[-1][1] == end:
        return []
    return [problem("end", f"{field}[{len(bounds) - 1}]", f"stop {end}", f"stop {bounds[-1][1]}")]


def owner_of(index: int, bounds: Sequence[tuple[int, int]]) -> int:
    """The rank whose shard holds global `index`."""
    for rank, (start, stop) in enumerate(bounds):
        if start <= index < stop:
            return rank
    raise IndexError(f"index {index} lies in none of the shards {tuple(bounds)}")
