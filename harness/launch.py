"""Start the ranks in one child process, follow them, and leave nobody behind. Never imports torch.

torchrun's exit status is 1 whatever happened and it has no deadline for a whole job, so deadline, outcome
and blame are decided here, from the ranks' own status files and from the process table.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness import guard
from harness.blame import Culprit, blame_death, blame_failure, blame_hang
from harness.launch_log import tail
from harness.launch_request import LaunchRequest, worker_environment
from harness.launch_watch import OnCase, OnStatus, Watch
from harness.processes import Family
from harness.signals import caught_signals
from harness.stacks import request_stacks
from harness.status import RankError, RankStatus

POLL_SECONDS = 0.03
# How long other ranks may take to report the error that one rank reported.
FAILURE_GRACE = 1.5
# How long the cause of a death may take to show: an exit status, another rank's error, torchrun's account.
DEATH_GRACE = 0.5
# How long ranks and torchrun may take to end after all is done, at least: no step of the run, but not free.
TEARDOWN_SECONDS = 10.0
# How long ranks may take to end by themselves once told to.
END_PATIENCE = 3.0


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


@dataclass(frozen=True)
class _Ending:
    kind: OutcomeKind
    culprit: Culprit | None = None
    error: RankError | None = None
    signal: str | None = None
    tail: str = ""


def launch(
    request: LaunchRequest,
    *,
    on_status: OnStatus = lambda statuses: None,
    on_case: OnCase = lambda index, text: None,
) -> LaunchOutcome:
    """Run `request` to its end, however it ends.

    `on_status` gets all known statuses whenever one changes, `on_case` the number and text of each finished
    case, in order. When a callback raises, everyone is ended first. In the main thread SIGINT and SIGTERM end
    the launch, and a second one hurries; in any other thread the caller keeps its own handlers. Stay in the
    calling thread until this returns: its end would end the ranks too.
    """
    started = time.monotonic()
    mark = secrets.token_hex(8)
    with caught_signals() as signals:
        try:
            process = _start(request, mark)
        except OSError as error:
            culprit = Culprit((), f"the launcher could not start {request.python}: {error.strerror}")
            return LaunchOutcome(OutcomeKind.COULD_NOT_START, time.monotonic() - started, culprit)
        watch = Watch(request, process, on_status, on_case)
        try:
            ending = _follow(watch, signals)
        finally:
            left = _end_everyone(watch, mark, signals)
        watch.deliver()
    return LaunchOutcome(
        ending.kind,
        time.monotonic() - started,
        ending.culprit,
        ending.error,
        ending.signal,
        tuple(status for _, status in sorted(watch.statuses.items())),
        ending.tail,
        tuple(sorted(left)),
    )


def _start(request: LaunchRequest, mark: str) -> subprocess.Popen[bytes]:
    # By path and isolated: the guard must work before any import path is settled, and at once.
    guarded = [request.python, "-I", "-S", guard.__file__, str(os.getpid()), *request.command(request)]
    log = os.open(request.rundir.launcher_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            guarded,
            env=worker_environment(request, mark),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=0o077,
        )
    finally:
        os.close(log)


def _follow(watch: Watch, signals: Sequence[str]) -> _Ending:
    while True:
        exited = watch.process.poll() is not None  # before looking: after it, nothing new is written
        watch.look()
        ending = _interrupted(signals) or _broken(watch, exited) or _exited(watch, exited) or _overdue(watch)
        if ending is not None:
            return ending
        time.sleep(POLL_SECONDS)


def _interrupted(signals: Sequence[str]) -> _Ending | None:
    return _Ending(OutcomeKind.INTERRUPTED, signal=signals[0]) if signals else None


def _broken(watch: Watch, exited: bool) -> _Ending | None:
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


def _exited(watch: Watch, exited: bool) -> _Ending | None:
    if not exited:
        return None
    code = watch.process.returncode
    if watch.all_done and code == 0:
        return _Ending(OutcomeKind.FINISHED)
    if watch.statuses and (watch.deaths() or len(watch.statuses) < watch.request.ranks):
        return _died(watch)
    return _ended_oddly(watch) if watch.statuses else _not_started(watch)


def _ended_oddly(watch: Watch) -> _Ending:
    reason = f"the launched command ended with status {watch.process.returncode} after all ranks were done"
    return _Ending(OutcomeKind.RANK_DIED, Culprit((), reason), tail=tail(watch.request.rundir))


def _not_started(watch: Watch) -> _Ending:
    ranks = tuple(death.rank for death in watch.deaths())
    text = tail(watch.request.rundir, ranks)
    who = f"rank {ranks[0]}" if ranks else "the launched command"
    last = text.splitlines()[-1].strip() if text else "no output"
    reason = f"{who} ended before any rank had started: {last}"
    return _Ending(OutcomeKind.COULD_NOT_START, Culprit(ranks, reason), tail=text)


def _overdue(watch: Watch) -> _Ending | None:
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
        return _Ending(OutcomeKind.COULD_NOT_START, Culprit((), reason), tail=tail(request.rundir))
    frames = request_stacks(request.rundir, watch.living_pids())
    culprit = blame_hang(watch.statuses, request.ranks, frames)
    return _Ending(OutcomeKind.HUNG, culprit, tail=tail(request.rundir, culprit.ranks))


def _died(watch: Watch) -> _Ending:
    culprit = blame_death(watch.statuses, watch.deaths(), watch.request.ranks)
    return _Ending(OutcomeKind.RANK_DIED, culprit, tail=tail(watch.request.rundir, culprit.ranks))


def _failed(watch: Watch) -> _Ending:
    culprit = blame_failure(watch.statuses)
    error = watch.statuses[culprit.ranks[0]].error
    return _Ending(OutcomeKind.RANK_FAILED, culprit, error, tail=tail(watch.request.rundir, culprit.ranks))


def _end_everyone(watch: Watch, mark: str, signals: Sequence[str]) -> set[int]:
    family = Family(watch.process.pid, mark, {status.pid for status in watch.statuses.values()})
    count = len(signals)
    left = family.end(watch.process.poll, END_PATIENCE, lambda: len(signals) > count)
    if watch.process.poll() is None and not left:
        watch.process.wait(END_PATIENCE)
    return left
