"""How a launch ended and who is at fault. Imports no torch, and starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.launching.blame import Culprit
from harness.launching.status import RankError, RankStatus


class OutcomeKind(StrEnum):
    """How a launch ended."""

    FINISHED = "finished"
    RANK_FAILED = "rank_failed"
    RANK_DIED = "rank_died"
    HUNG = "hung"
    INTERRUPTED = "interrupted"
    COULD_NOT_START = "could_not_start"


@dataclass(frozen=True)
class LaunchOutcome:
    """How a launch ended and who is at fault.

    `error` is the failed rank's own; `signal` the name of the one that interrupted; `tail` the last lines
    that the culprit (or else the launched command) printed; `seconds` includes ending everyone; `left`
    names processes that could not be ended.
    """

    kind: OutcomeKind
    seconds: float
    culprit: Culprit | None = None
    error: RankError | None = None
    signal: str | None = None
    statuses: tuple[RankStatus, ...] = ()
    tail: str = ""
    left: tuple[int, ...] = ()
