"""Ranks, places and errors in words, as every blame says them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.launching.status import Phase, RankStatus

Statuses = Mapping[int, RankStatus]


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def missing(statuses: Statuses, ranks: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(ranks) if rank not in statuses)


def place_of(status: RankStatus) -> str:
    return in_case(status.phase, case_name(status))


def in_case(phase: Phase, case: str | None) -> str:
    if case is None or phase in (Phase.START, Phase.READY):
        return f"phase {phase}"
    return f"case {case!r}" if phase is Phase.CASE else f"{phase} of case {case!r}"


def case_name(status: RankStatus) -> str | None:
    return None if status.case is None else status.case.name


def named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def seen_at(ranks: Sequence[int], frames: Mapping[int, str]) -> str:
    """`; it was at load (feed.py:9)`, or of several ranks where each was; nothing where none was seen."""
    seen = [(rank, frames[rank]) for rank in ranks if rank in frames]
    if len(ranks) == 1 and seen:
        return f"; it was at {seen[0][1]}"
    return "; " + ", ".join(f"rank {rank} was at {frame}" for rank, frame in seen) if seen else ""
