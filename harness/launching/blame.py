"""From what the ranks last said to the rank that is at fault. Pure: no clock, no process, no file.

The rank that is reported by torchrun, or whose collective times out, is often only a victim: it waited for
another. So a death is blamed on the first death that nobody else caused, a failure on the earliest error that is
not itself the effect of a lost connection, and a hang (blame_hang) on whoever is least far.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence, Set
from dataclasses import dataclass

from harness.launching.blame_words import Statuses, case_name, first_line, in_case, missing, named, place_of
from harness.launching.status import Phase, RankError, RankStatus

# What a rank says whose partner is gone or late. Such an error is an effect, never the cause.
_EFFECT = re.compile(
    r"timed? ?out|connection (was )?(closed|reset|refused)|broken pipe|(read|write|recv|send) error"
    r"|socket|remote worker|SIGTERM|SIGHUP",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Culprit:
    """Who is at fault, doing what, and one sentence about it. `phase` is None when nobody got that far.

    `explained` says that the cause of a hang is known: no second look would tell more.
    """

    ranks: tuple[int, ...]
    reason: str
    phase: Phase | None = None
    case: str | None = None
    explained: bool = False


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


def blame_death(statuses: Statuses, deaths: Sequence[Death], ranks: int) -> Culprit:
    """The first death that is certain; else one that nobody is known to have caused; else a rank that never
    reported; else the first death seen. `deaths` is in the order seen; without any, a rank must be missing.
    """
    guilty = min(deaths, key=lambda death: (death.closed, not death.is_certain), default=None)
    absent = missing(statuses, ranks)
    if guilty is None or (guilty.closed and absent):
        return Culprit(absent, f"{named(absent)} ended before reporting that it started", Phase.START)
    status = statuses.get(guilty.rank)
    cause = _cause(guilty.exit)
    if status is not None and guilty.exit == 0:
        cause += _LEFT.get(status.phase, "")
    if status is None:
        return Culprit((guilty.rank,), f"rank {guilty.rank} died at its start{cause}", Phase.START)
    place = "after it was done" if status.phase is Phase.DONE else f"in {place_of(status)}"
    reason = f"rank {guilty.rank} died {place}{cause}"
    return Culprit((guilty.rank,), reason, status.phase, case_name(status))


# Nothing of ours leaves with status 0 before it is done, and neither does torch.
_LEFT = {
    Phase.START: ", left of its own accord, most likely in the import of the op",
    **dict.fromkeys(
        (Phase.CASE, Phase.FORWARD, Phase.BACKWARD), ", left of its own accord, most likely in a call of the op"
    ),
}


def blame_failure(statuses: Statuses) -> Culprit:
    """The earliest error among the failed ranks, with every rank that reports the same kind of error."""
    failed = {rank: status for rank, status in statuses.items() if status.error is not None}
    first = min(failed.values(), key=lambda status: (is_effect(status), status.time, status.rank))
    assert first.error is not None  # that is how they were chosen
    error, case = first.error, case_name(first)
    same = tuple(sorted(rank for rank, status in failed.items() if _kind(status.error) == _kind(error)))
    who = "every rank" if len(same) == len(statuses) > 1 else named(same)
    reason = f"{who} failed in {in_case(error.phase, case)}: {_message(error)}"
    return Culprit(same, reason, error.phase, case)


def _message(error: RankError) -> str:
    """The first line of an error; a foreign error's class comes first, because its words may say little."""
    line = first_line(error.message)
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
    return (error.code, first_line(error.message) if error.code[:1].isupper() else "")


def _cause(code: int | None) -> str:
    if code is None:
        return ""
    if code >= 0:
        return f" (exit status {code})"
    name = signal.Signals(-code).name if -code in _signal_numbers() else "unknown"
    return f" (signal {-code}, {name})"


def _signal_numbers() -> Set[int]:
    return {int(each) for each in signal.Signals}
