"""From what the ranks last said to the rank that is at fault. Pure: no clock, no process, no file.

The rank that is reported by torchrun, or whose collective times out, is often only a victim: it waited for
another. So a hang is blamed on whoever is least far, a death on the first death that nobody else caused,
a failure on the earliest error that is not itself the effect of a lost connection.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from harness.status import Phase, RankError, RankStatus

Statuses = Mapping[int, RankStatus]
# What a rank says whose partner is gone or late. Such an error is an effect, never the cause.
_EFFECT = re.compile(
    r"timed? ?out|connection (was )?(closed|reset|refused)|broken pipe|(read|write|recv|send) error"
    r"|socket|SIGTERM",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Culprit:
    """Who is at fault, doing what, and one sentence about it. `phase` is None when nobody got that far."""

    ranks: tuple[int, ...]
    reason: str
    phase: Phase | None = None
    case: str | None = None


@dataclass(frozen=True)
class Death:
    """A rank whose process ended before its time.

    `exit` is its status, or minus the number of the signal that killed it, or None when that could not be
    learned. `closed` says that the launched command ended it, cleaning up after another rank.
    """

    rank: int
    exit: int | None
    closed: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether it must have come from within the rank: a known cause that is nobody's cleaning up."""
        return not self.closed and self.exit not in (None, -signal.SIGTERM)


def blame_hang(statuses: Statuses, ranks: int, frames: Mapping[int, str] | None = None) -> Culprit:
    """The ranks that are least far while the others wait for them; all of them when none is behind.

    `frames` says where a rank's main thread was seen. A rank without a status is behind all others.
    """
    missing = _missing(statuses, ranks)
    if missing:
        others = "" if len(missing) == ranks else " while " + _waiting(statuses, statuses)
        return Culprit(missing, f"{_named(missing)} never reported that it started{others}", Phase.START)
    if alone := _refused_alone(statuses):
        return alone
    least = min(_progress(status) for status in statuses.values())
    behind = tuple(sorted(rank for rank, status in statuses.items() if _progress(status) == least))
    first = statuses[behind[0]]
    reason = _stopped(first, behind, ranks) + _others(statuses, behind) + _seen_at(behind, frames or {})
    return Culprit(behind, reason, first.phase, _case_name(first))


def blame_death(statuses: Statuses, deaths: Sequence[Death], ranks: int) -> Culprit:
    """The first death that is certain; else one that nobody is known to have caused; else a rank that never
    reported; else the first death seen. `deaths` is in the order seen; without any, a rank must be missing.
    """
    guilty = min(deaths, key=lambda death: (death.closed, not death.is_certain), default=None)
    missing = _missing(statuses, ranks)
    if guilty is None or (guilty.closed and missing):
        return Culprit(missing, f"{_named(missing)} ended before reporting that it started", Phase.START)
    status = statuses.get(guilty.rank)
    cause = _cause(guilty.exit)
    if status is None:
        return Culprit((guilty.rank,), f"rank {guilty.rank} died at its start{cause}", Phase.START)
    place = "after it was done" if status.phase is Phase.DONE else f"in {_place(status)}"
    reason = f"rank {guilty.rank} died {place}{cause}"
    return Culprit((guilty.rank,), reason, status.phase, _case_name(status))


def blame_failure(statuses: Statuses) -> Culprit:
    """The earliest error among the failed ranks, with every rank that reports the same kind of error."""
    failed = {rank: status for rank, status in statuses.items() if status.error is not None}
    first = min(failed.values(), key=lambda status: (is_effect(status), status.time, status.rank))
    assert first.error is not None  # that is how they were chosen
    error, case = first.error, _case_name(first)
    same = tuple(sorted(rank for rank, status in failed.items() if _kind(status.error) == _kind(error)))
    who = "every rank" if len(same) == len(statuses) > 1 else _named(same)
    reason = f"{who} failed in {_in_case(error.phase, case)}: {_message(error)}"
    return Culprit(same, reason, error.phase, case)


def _refused_alone(statuses: Statuses) -> Culprit | None:
    """Ranks that refused a case which others, waiting for them, did not refuse. They are not behind: ahead."""
    refused = tuple(sorted(rank for rank, status in statuses.items() if status.refusal is not None))
    waiting = [rank for rank, status in statuses.items() if status.refusal is None and not status.idle]
    if not refused or not waiting:
        return None
    first = statuses[refused[0]]
    why = _first_line(first.refusal or "")
    reason = f"{_named(refused)} alone refused {_in_case(Phase.CASE, _case_name(first))} while "
    return Culprit(refused, f"{reason}{_waiting(statuses, waiting)}: {why}", first.phase, _case_name(first))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _message(error: RankError) -> str:
    """The first line of an error; a foreign error's class comes first, because its words may say little."""
    line = _first_line(error.message)
    if not error.code[:1].isupper():
        return line or error.code
    return f"{error.code}: {line}" if line else error.code


def is_effect(status: RankStatus) -> bool:
    """Whether a rank failed only because another was gone or late."""
    error = status.error
    return error is not None and error.code[:1].isupper() and bool(_EFFECT.search(error.message))


def _kind(error: RankError | None) -> tuple[str, str] | None:
    """What makes two ranks' errors one: for one of ours its code. A RuntimeError alone can be cause and effect."""
    if error is None:
        return None
    return (error.code, _first_line(error.message) if error.code[:1].isupper() else "")


def _missing(statuses: Statuses, ranks: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(ranks) if rank not in statuses)


def _progress(status: RankStatus) -> tuple[bool, int, bool, int, int]:
    """Sort key of how far a rank is: the case, then the collectives it entered there, then the phase.

    Collectives come before the phase because a case may run forward and backward more than once. A rank
    that takes no part in a case is never behind one that does.
    """
    case = -1 if status.case is None else status.case.index
    return (status.phase.is_final, case, status.idle, status.collectives, status.phase.order)


def _stopped(first: RankStatus, behind: Sequence[int], ranks: int) -> str:
    who = f"all ranks ({', '.join(map(str, behind))})" if 1 < len(behind) == ranks else _named(behind)
    if first.phase is Phase.DONE:
        return f"{who} did not end after being done"
    if first.phase is Phase.START:
        return f"{who} did not get ready"
    return f"{who} stopped answering in {_place(first)}{_after(first)}"


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
        f"{_named(here)} {'waits' if len(here) == 1 else 'wait'} {place}" for place, here in places.items()
    )


def _waiting_place(status: RankStatus) -> str:
    if status.phase.is_final or status.case is None:
        return f"in {status.phase}"
    if status.idle:
        return "without a part in it"
    return f"in collective {status.collectives}" if status.collectives else f"in {status.phase}"


def _seen_at(ranks: Sequence[int], frames: Mapping[int, str]) -> str:
    seen = [(rank, frames[rank]) for rank in ranks if rank in frames]
    if len(ranks) == 1 and seen:
        return f"; it was at {seen[0][1]}"
    return "; " + ", ".join(f"rank {rank} was at {frame}" for rank, frame in seen) if seen else ""


def _cause(code: int | None) -> str:
    if code is None:
        return ""
    if code >= 0:
        return f" (exit status {code})"
    name = signal.Signals(-code).name if -code in _signal_numbers() else "unknown"
    return f" (signal {-code}, {name})"


def _signal_numbers() -> Set[int]:
    return {int(each) for each in signal.Signals}


def _place(status: RankStatus) -> str:
    return _in_case(status.phase, _case_name(status))


def _in_case(phase: Phase, case: str | None) -> str:
    if case is None or phase in (Phase.START, Phase.READY):
        return f"phase {phase}"
    return f"case {case!r}" if phase is Phase.CASE else f"{phase} of case {case!r}"


def _case_name(status: RankStatus) -> str | None:
    return None if status.case is None else status.case.name


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
