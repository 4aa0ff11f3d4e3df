"""Who is at fault among ranks that are equally far, by what their stacks show. Pure, as all blame is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from harness.launching.blame import Culprit
from harness.launching.blame_words import Statuses, case_name, named, place_of, seen_at

IN_NONE = "in no collective"


def blame_outside(
    statuses: Statuses, behind: Sequence[int], frames: Mapping[int, str], waiting: Mapping[int, str]
) -> Culprit | None:
    """The ranks of a case that are in no collective while those that are least far (`behind`) wait in one.

    Where all wait, those in another collective than most. None where stacks tell nothing, or not of every rank.
    """
    case = statuses[behind[0]].case
    at_work = [rank for rank, status in statuses.items() if status.case == case and not _rests(statuses, rank)]
    victims = [rank for rank in behind if rank in waiting]
    if case is None or not victims or not set(at_work) <= frames.keys():
        return None
    outside = [rank for rank in at_work if rank not in waiting] or _in_another(behind, waiting)
    if not outside:
        return None
    ranks = tuple(sorted(outside))
    first = statuses[ranks[0]]
    others = _waits(sorted(set(victims) - set(ranks)), frames, waiting)
    here = ", ".join(dict.fromkeys(f"in {waiting[r]} at {frames[r]}" if r in waiting else IN_NONE for r in ranks))
    seen = seen_at([rank for rank in ranks if rank not in waiting], frames)
    reason = f"{named(ranks)} stopped answering in {place_of(first)}, {here}, while {others}{seen}"
    return Culprit(ranks, reason, first.phase, case_name(first))


def _rests(statuses: Statuses, rank: int) -> bool:
    status = statuses[rank]
    return status.idle or status.phase.is_final


def _in_another(behind: Sequence[int], waiting: Mapping[int, str]) -> list[int]:
    """Those in another collective than more than half of the ranks that are equally far."""
    if not set(behind) <= waiting.keys():
        return []
    ((usual, count),) = Counter(waiting[rank] for rank in behind).most_common(1)
    return [rank for rank in behind if waiting[rank] != usual] if 2 * count > len(behind) else []


def _waits(ranks: Iterable[int], frames: Mapping[int, str], waiting: Mapping[int, str]) -> str:
    """`ranks 0, 2 wait in all_reduce at loss (op.py:14)`: ranks at one place share a clause."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        places.setdefault(f"in {waiting[rank]} at {frames[rank]}", []).append(rank)
    return " and ".join(
        f"{named(here)} {'waits' if len(here) == 1 else 'wait'} {place}" for place, here in places.items()
    )
