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

from harness.launching.blame import Culprit
from harness.launching.endings import Ending, ending_of
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from harness.launching.launch_request import LaunchRequest, worker_environment
from harness.launching.launch_watch import OnCase, Watch
from harness.system import guard
from harness.system.processes import Family
from harness.system.signals import caught_signals

POLL_SECONDS = 0.03
# How long ranks may take to end by themselves once told to.
END_PATIENCE = 3.0


def launch(
    request: LaunchRequest,
    *,
    on_case: OnCase = lambda index, text: None,
) -> LaunchOutcome:
    """Run `request` to its end, however it ends.

    `on_case` gets the number and text of each finished case, in order. When it raises, everyone is ended first.
    In the main thread SIGINT and SIGTERM end the launch, and a second one hurries; in any other thread the
    caller keeps its own handlers. Stay in the calling thread until this returns: its end would end the ranks too.
    """
    started = time.monotonic()
    mark = secrets.token_hex(8)
    with caught_signals() as signals:
        try:
            process = _start(request, mark)
        except OSError as error:
            culprit = Culprit((), f"the launcher could not start {request.python}: {error.strerror}")
            return LaunchOutcome(OutcomeKind.COULD_NOT_START, time.monotonic() - started, culprit)
        watch = Watch(request, process, on_case)
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


def _follow(watch: Watch, signals: Sequence[str]) -> Ending:
    while True:
        exited = watch.process.poll() is not None  # before looking: after it, nothing new is written
        watch.look()
        ending = ending_of(watch, exited, signals)
        if ending is not None:
            return ending
        time.sleep(POLL_SECONDS)


def _end_everyone(watch: Watch, mark: str, signals: Sequence[str]) -> set[int]:
    family = Family(watch.process.pid, mark, {status.pid for status in watch.statuses.values()})
    count = len(signals)
    if watch.all_ended_well:
        watch.process.kill()  # torchrun has nothing left to do; what a rank has started may
    left = family.end(watch.process.poll, END_PATIENCE, lambda: len(signals) > count)
    if watch.process.poll() is None and not left:
        watch.process.wait(END_PATIENCE)
    return left
