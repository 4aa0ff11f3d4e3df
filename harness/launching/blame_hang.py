"""Who is at fault when nothing moves: whoever is stopped, is least far, is in no collective, or refused alone.

Pure, as all blame is. A foreign op's own collectives are not counted, so ranks that are equally far are told apart
by their stacks: one that waits in a collective is the victim of one that does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.launching.blame import Culprit
from harness.launching.blame_stacks import blame_outside
from harness.launching.blame_words import (
    Statuses,
    case_name,
    first_line,
    in_case,
    missing,
    named,
    place_of,
    seen_at,
)
from harness.launching.status import Phase, RankStatus


def blame_hang(
    statuses: Statuses,
    ranks: int,
    frames: Mapping[int, str] | None = None,
    waiting: Mapping[int, str] | None = None,
) -> Culprit:
    """The ranks that are least far while the others wait for them; all of them when none is behind.

    `frames` says where a rank's main thread was seen, `waiting` in which collective, for those that were in one. A
    rank without a status is behind all others.
    """
    absent = missing(statuses, ranks)
    if absent:
        others = "" if len(absent) == ranks else " while " + _waiting(statuses, statuses)
        return Culprit(absent, f"{named(absent)} never reported that it started{others}", Phase.START)
    if alone := _refused_alone(statuses):
        return alone
    least = min(_progress(status) for status in statuses.values())
    behind = tuple(sorted(rank for rank, status in statuses.items() if _progress(status) == least))
    if outside := blame_outside(statuses, behind, frames or {}, waiting or {}):
        return outside
    first = statuses[behind[0]]
    reason = _stopped(first, behind, ranks) + _others(statuses, behind) + seen_at(behind, frames or {})
    return Culprit(behind, reason, first.phase, case_name(first))


def blame_stopped(statuses: Statuses, stopped: Mapping[int, str]) -> Culprit:
    """The ranks that somebody stopped, whatever the counts say: the others wait for them."""
    ranks = tuple(sorted(stopped))
    first = statuses[ranks[0]]
    who = f"{named(ranks)} {'is' if len(ranks) == 1 else 'are'} stopped"
    how = " or ".join(dict.fromkeys(stopped[rank] for rank in ranks))
    place = "after being done" if first.phase is Phase.DONE else f"in {place_of(first)}"
    reason = f"{who} ({how}), {place}{_others(statuses, ranks)}"
    return Culprit(ranks, reason, first.phase, case_name(first), explained=True)


def _refused_alone(statuses: Statuses) -> Culprit | None:
    """Ranks that refused a case which others, waiting for them, did not refuse. They are not behind: ahead."""
    refused = tuple(sorted(rank for rank, status in statuses.items() if status.refusal is not None))
    waiting = [rank for rank, status in statuses.items() if status.refusal is None and not status.idle]
    if not refused or not waiting:
        return None
    first = statuses[refused[0]]
    why = first_line(first.refusal or "")
    reason = f"{named(refused)} alone refused {in_case(Phase.CASE, case_name(first))} while "
    return Culprit(refused, f"{reason}{_waiting(statuses, waiting)}: {why}", first.phase, case_name(first))


def _progress(status: RankStatus) -> tuple[bool, int, bool, int, int]:
    """Sort key of how far a rank is: the case, then the collectives it entered there, then the phase.

    Collectives come before the phase because a case may run forward and backward more than once. A rank
    that takes no part in a case is never behind one that does.
    """
    case = -1 if status.case is None else status.case.index
    return (status.phase.is_final, case, status.idle, status.collectives, status.phase.order)


def _stopped(first: RankStatus, behind: Sequence[int], ranks: int) -> str:
    who = f"all ranks ({', '.join(map(str, behind))})" if 1 < len(behind) == ranks else named(behind)
    if first.phase is Phase.DONE:
        return f"{who} did not end after being done"
    if first.phase is Phase.START:
        return f"{who} did not get ready"
    return f"{who} stopped answering in {place_of(first)}{_after(first)}"


def _after(status: RankStatus) -> str:
    if status.case is None:
        return ""
    return f" after collective {status.collectives}" if status.collectives else " before its first collective"


def _others(statuses: Statuses, behind: Sequence[int]) -> str:
    waiting = [rank for rank in statuses if rank not in behind]
    return " while " + _waiting(statuses, waiting) if waiting else ""


def _waiting(statuses: Statuses, ranks: Iterable[int]) -> str:
    """`ranks 0, 1 wait in collective 8 and rank 3 waits in compare`: ranks at one place share a clause."""
    places: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        places.setdefault(_waiting_place(statuses[rank]), []).append(rank)
    return " and ".join(
        f"{named(here)} {'waits' if len(here) == 1 else 'wait'} {place}" for place, here in places.items()
    )


def _waiting_place(status: RankStatus) -> str:
    if status.phase.is_final or status.case is None:
        return f"in {status.phase}"
    if status.idle:
        return "without a part in it"
    return f"in collective {status.collectives}" if status.collectives else f"in {status.phase}"
