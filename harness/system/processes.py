"""The processes of one launch: who belongs to it, who still lives, and how all of them are ended.

Ranks get sessions of their own from torchrun, and anything a rank starts may leave its session too, so a
process group is not enough. A process belongs to the launch when its environment carries the launch's
mark, or when its parent or its session leader belongs. Without /proc only the recorded pids are known.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harness.system.guard import exists

MARK = "GRPO_VERIFY_LAUNCH"
_PROC = Path("/proc")
_KILL_SECONDS = 5.0
_STOPPED = {"T": "by a signal such as SIGSTOP", "t": "by a debugger"}
_PAUSE = 0.02


@dataclass(frozen=True)
class Process:
    """One line of the process table. `exit` is known of a zombie: a status, or minus a signal's number.

    `stopped` is what holds a process that is stopped and not ended; None for one that may run.
    """

    pid: int
    parent: int
    session: int
    ended: bool
    exit: int | None
    stopped: str | None = None


def read_process(pid: int) -> Process | None:
    """The process `pid`, a zombie included; None when there is none, or no /proc."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    ended = fields[0] in "ZX"
    raw = int(fields[49]) if len(fields) > 49 else 0
    status = os.waitstatus_to_exitcode(raw) if ended and (raw or _is_told(pid)) else None
    return Process(pid, int(fields[1]), int(fields[3]), ended, status, _STOPPED.get(fields[0]))


def _is_told(pid: int) -> bool:
    """Whether the exit status of the zombie `pid` is the real one: the kernel shows 0 to whom it will not tell."""
    try:
        os.readlink(_PROC / str(pid) / "exe")
    except FileNotFoundError:  # a zombie has none, and that is shown only to whom all is
        return True
    except OSError:
        return False
    return True


def command_of(pid: int) -> list[bytes]:
    """The command line of the running process `pid`; empty when there is none, or no /proc."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Whether `pid` runs. A zombie does not."""
    if has_process_table():
        process = read_process(pid)
        return process is not None and not process.ended
    return exists(pid)


def has_process_table() -> bool:
    """Whether this system shows its processes in /proc."""
    return (_PROC / "self" / "stat").exists()


@dataclass
class Family:
    """Everyone who belongs to the launch marked `mark`, whose first process is `root`.

    `recorded` holds pids that ranks reported; they are used only where there is no process table, because
    a number in a file is weak evidence against a process.
    """

    root: int
    mark: str
    recorded: set[int] = field(default_factory=set)

    def living(self) -> set[int]:
        """The pids of all members that still run; never this process."""
        if not has_process_table():
            return {pid for pid in {self.root, *self.recorded} if is_alive(pid)}
        table = {process.pid: process for process in _table()}
        members = {pid for pid in table if self._is_marked(pid)} | ({self.root} & table.keys())
        while new := {p.pid for p in table.values() if {p.parent, p.session} & members} - members:
            members |= new
        return {pid for pid in members if not table[pid].ended} - {os.getpid()}

    def end(self, reap: Callable[[], object], patience: float, hurry: Callable[[], bool]) -> set[int]:
        """SIGTERM, then SIGKILL after `patience` seconds, or at once when `hurry()` says so.

        `reap` is called while waiting, to collect the root's exit status. Returns who is left, which is
        nobody unless a process hangs in the kernel.
        """
        _send(self.living(), signal.SIGTERM)
        patient = time.monotonic() + patience
        final = patient + _KILL_SECONDS
        while (left := self.living()) and (now := time.monotonic()) < final:
            if now > patient or hurry():
                _send(left, signal.SIGKILL)
            reap()
            time.sleep(_PAUSE)
        return left

    def _is_marked(self, pid: int) -> bool:
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return False
        return f"{MARK}={self.mark}".encode() in environment.split(b"\0")


def _table() -> list[Process]:
    pids = (int(name) for name in os.listdir(_PROC) if name.isdigit())
    return [process for process in map(read_process, pids) if process is not None]


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
