"""When a launch is over, and why: the rules, applied to what the launcher can see. They act on nothing.

A death that comes no later than an error is its cause, an error of all ranks is one error, and a hang is what
goes on without progress for longer than the run allows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from harness.launching.blame import Culprit, blame_death, blame_failure
from harness.launching.blame_hang import blame_hang, blame_stopped
from harness.launching.launch_log import tail
from harness.launching.launch_outcome import OutcomeKind
from harness.launching.launch_watch import Watch
from harness.launching.stacks import request_stacks
from harness.launching.status import RankError

# How long other ranks may take to report the error that one rank reported.
FAILURE_GRACE = 1.5
# How long the cause of a death may take to show: an exit status, another rank's error, torchrun's account.
DEATH_GRACE = 0.5
# How long ranks and torchrun may take to end after all is done, at least: no step of the run, but not free.
TEARDOWN_SECONDS = 10.0


@dataclass(frozen=True)
class Ending:
    """How it ended, before everyone is ended."""

    kind: OutcomeKind
    culprit: Culprit | None = None
    error: RankError | None = None
    signal: str | None = None
    tail: str = ""


def ending_of(watch: Watch, exited: bool, signals: Sequence[str]) -> Ending | None:
    """The ending, or None while the launch goes on. `exited`: the command had ended before the last look."""
    return (
        _interrupted(signals)
        or _broken(watch, exited)
        or _finished(watch)
        or _exited(watch, exited)
        or _overdue(watch)
    )


def _interrupted(signals: Sequence[str]) -> Ending | None:
    return Ending(OutcomeKind.INTERRUPTED, signal=signals[0]) if signals else None


def _broken(watch: Watch, exited: bool) -> Ending | None:
    """A death, or else an error. A death that comes no later than an error is its cause: errors are how
    other ranks notice a death, and the watch notes no death after the first error."""
    now = time.monotonic()
    deaths = [] if watch.first_death is None else watch.deaths()
    settled = exited or (watch.first_death is not None and now - watch.first_death > DEATH_GRACE)
    unprovoked = [death for death in deaths if not death.closed]
    if any(death.is_certain for death in deaths) or (deaths and settled and watch.first_failure is None):
        return _died(watch)
    if unprovoked and watch.first_failure is not None:
        return _died(watch) if settled or any(death.exit is not None for death in unprovoked) else None
    if watch.first_failure is not None:
        told = watch.all_ended and not watch.only_effects
        over = exited or told or now - watch.first_failure > FAILURE_GRACE
        return _failed(watch) if over else None
    return None


def _finished(watch: Watch) -> Ending | None:
    """Once all ranks are done and well gone there is nothing to wait for: torchrun takes half a second more."""
    return Ending(OutcomeKind.FINISHED) if watch.all_ended_well and not watch.deaths() else None


def _exited(watch: Watch, exited: bool) -> Ending | None:
    if not exited:
        return None
    code = watch.process.returncode
    if watch.all_done and code == 0:
        return Ending(OutcomeKind.FINISHED)
    if watch.statuses and (watch.deaths() or len(watch.statuses) < watch.request.ranks):
        return _died(watch)
    return _ended_oddly(watch) if watch.statuses else _not_started(watch)


def _ended_oddly(watch: Watch) -> Ending:
    reason = f"the launched command ended with status {watch.process.returncode} after all ranks were done"
    return Ending(OutcomeKind.RANK_DIED, Culprit((), reason), tail=tail(watch.request.rundir))


def _not_started(watch: Watch) -> Ending:
    ranks = tuple(death.rank for death in watch.deaths())
    text = tail(watch.request.rundir, ranks)
    who = f"rank {ranks[0]}" if ranks else "the launched command"
    last = text.splitlines()[-1].strip() if text else "no output"
    reason = f"{who} ended before any rank had started: {last}"
    return Ending(OutcomeKind.COULD_NOT_START, Culprit(ranks, reason), tail=text)


def _overdue(watch: Watch) -> Ending | None:
    request, now = watch.request, time.monotonic()
    if watch.all_ready:
        allowed = max(request.timeout, TEARDOWN_SECONDS) if watch.all_done else request.timeout
        overdue = now - watch.changed > allowed
    else:
        overdue = now - watch.started > request.start_timeout
    if not overdue:
        return None
    if not watch.statuses:
        reason = f"no rank started within {request.start_timeout:g} seconds"
        return Ending(OutcomeKind.COULD_NOT_START, Culprit((), reason), tail=tail(request.rundir))
    if stopped := watch.stopped():
        culprit = blame_stopped(watch.statuses, stopped)
        return Ending(OutcomeKind.HUNG, culprit, tail=tail(request.rundir, culprit.ranks))
    places = request_stacks(request.rundir, watch.living_pids())
    frames = {rank: place.frame for rank, place in places.items()}
    waiting = {rank: place.collective for rank, place in places.items() if place.collective}
    culprit = blame_hang(watch.statuses, request.ranks, frames, waiting)
    return Ending(OutcomeKind.HUNG, culprit, tail=tail(request.rundir, culprit.ranks))


def _died(watch: Watch) -> Ending:
    culprit = blame_death(watch.statuses, watch.deaths(), watch.request.ranks)
    return Ending(OutcomeKind.RANK_DIED, culprit, tail=tail(watch.request.rundir, culprit.ranks))


def _failed(watch: Watch) -> Ending:
    culprit = blame_failure(watch.statuses)
    error = watch.statuses[culprit.ranks[0]].error
    return Ending(OutcomeKind.RANK_FAILED, culprit, error, tail=tail(watch.request.rundir, culprit.ranks))
