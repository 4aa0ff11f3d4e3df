"""Stack traces of ranks that stopped answering: a rank prepares, the launcher asks. Standard library only."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from harness.rundir import RunDir, read_text

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_LIBRARIES = (os.sep + "site-packages" + os.sep, os.path.dirname(os.__file__) + os.sep, "<frozen")
_PAUSE = 0.05


def install_stack_dump(rundir: RunDir, rank: int) -> None:
    """Let SIGUSR1 write the stacks of all threads of this rank, even while it is stuck in native code.

    Fatal signals (a segmentation fault, say) print theirs to stderr.
    """
    faulthandler.enable()
    path = rundir.stack(rank)
    file = open(path, "w", encoding="utf-8", opener=_private)  # noqa: SIM115 - lives as long as the rank
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    # Written last: SIGUSR1 ends a process that is not ready for it, so the launcher waits for this line.
    file.write(f"rank {rank}, process {os.getpid()}\n")
    file.flush()


def request_stacks(rundir: RunDir, pids: Mapping[int, int], wait: float = 0.5) -> dict[int, str]:
    """Ask each rank of `pids` for its stacks and return, by rank, the place where its main thread is.

    Ranks that did not prepare are not asked. Waits until all have answered, for at most `wait` seconds.
    """
    before = {rank: text for rank in pids if (text := read_text(rundir.stack(rank)))}
    for rank in before:
        try:
            os.kill(pids[rank], signal.SIGUSR1)
        except (ProcessLookupError, PermissionError):
            continue
    end = time.monotonic() + wait
    while any(read_text(rundir.stack(rank)) == text for rank, text in before.items()) and time.monotonic() < end:
        time.sleep(_PAUSE)
    time.sleep(_PAUSE)
    frames = {rank: where(read_text(rundir.stack(rank)) or "") for rank in before}
    return {rank: frame for rank, frame in frames.items() if frame}


def where(dump: str) -> str | None:
    """The innermost frame of the main thread that is neither Python's own nor an installed library's.

    Falls back to the innermost frame of all. faulthandler lists the main thread last.
    """
    main = re.split(r"^(?:Current thread|Thread) .*$", dump, flags=re.MULTILINE)[-1]
    frames = [found for line in main.splitlines() if (found := _FRAME.match(line))]
    own = [frame for frame in frames if not any(part in frame["file"] for part in _LIBRARIES)]
    for frame in own or frames:
        return f"{frame['name']} ({Path(frame['file']).name}:{frame['line']})"
    return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
