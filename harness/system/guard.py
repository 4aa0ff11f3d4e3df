"""Nobody outlives the launcher. Standard library only; also run by its path, before anything is imported.

When the launcher is killed with SIGKILL it cannot clean up. So the launched command is started through
this file, which asks the kernel for SIGKILL when the launcher ends and then becomes the command; each rank
asks the same with regard to that command. Where the kernel has no such request (not Linux), a rank watches
the launcher from a thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

AGENT_PID = "GRPO_VERIFY_AGENT_PID"
LAUNCHER_PID = "GRPO_VERIFY_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1
_WATCH_SECONDS = 0.5


def has_launcher() -> bool:
    """Whether this rank was started by our launcher, and not by a user's own torchrun."""
    return AGENT_PID in os.environ and LAUNCHER_PID in os.environ


def install_parent_guard() -> None:
    """Make this rank end when the command that started it, or the launcher behind it, ends.

    Without a launcher (under a user's own torchrun) it does nothing.
    """
    agent, launcher = os.environ.get(AGENT_PID), os.environ.get(LAUNCHER_PID)
    if agent is None or launcher is None:
        return
    if sys.platform == "linux":
        _die_with(int(agent))
    else:
        threading.Thread(target=_watch, args=(int(launcher),), daemon=True, name="parent-guard").start()


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request was made
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(launcher: int) -> None:
    parent = os.getppid()
    while os.getppid() == parent and exists(launcher):
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


def exists(pid: int) -> bool:
    """Whether the kernel knows `pid`; it still knows a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _become(launcher: int, command: list[str]) -> None:
    if sys.platform == "linux":
        _die_with(launcher)
    os.environ[LAUNCHER_PID] = str(launcher)
    os.environ[AGENT_PID] = str(os.getpid())
    os.execvp(command[0], command)


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
