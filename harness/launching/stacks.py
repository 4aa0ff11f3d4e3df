"""Stack traces of ranks that stopped answering: a rank prepares, the launcher asks. Standard library only."""

from __future__ import annotations

import faulthandler
import linecache
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from harness.files.rundir import RunDir, read_text

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_LIBRARIES = (os.sep + "site-packages" + os.sep, os.path.dirname(os.__file__) + os.sep, "<frozen")
_DISTRIBUTED = os.sep + os.path.join("torch", "distributed") + os.sep
_PATIENCE = 0.5
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


@dataclass(frozen=True)
class Place:
    """Where a rank's main thread is, `name (file.py:line)`, and the collective it waits in, if it waits in one."""

    frame: str
    collective: str | None = None


def request_stacks(rundir: RunDir, pids: Mapping[int, int]) -> dict[int, Place]:
    """Ask each rank of `pids` for its stacks and return, by rank, the place where its main thread is.

    Ranks that did not prepare are not asked. Waits until all have answered, for half a second at most.
    """
    before = {rank: text for rank in pids if (text := read_text(rundir.stack(rank)))}
    for rank in before:
        try:
            os.kill(pids[rank], signal.SIGUSR1)
        except (ProcessLookupError, PermissionError):
            continue
    end = time.monotonic() + _PATIENCE
    while any(read_text(rundir.stack(rank)) == text for rank, text in before.items()) and time.monotonic() < end:
        time.sleep(_PAUSE)
    time.sleep(_PAUSE)
    dumps = {rank: read_text(rundir.stack(rank)) or "" for rank in before}
    return {rank: Place(frame, collective(dump)) for rank, dump in dumps.items() if (frame := where(dump))}


def where(dump: str) -> str | None:
    """The innermost frame of the main thread that is neither Python's own nor an installed library's.

    Falls back to the innermost frame of all. faulthandler lists the main thread last.
    """
    frames = _main_frames(dump)
    for frame in [frame for frame in frames if _is_own(frame)] or frames:
        return f"{frame['name']} ({Path(frame['file']).name}:{frame['line']})"
    return None


def collective(dump: str) -> str | None:
    """What of torch.distributed the main thread is in, such as `all_reduce`; None where it is elsewhere.

    A collective on a GPU returns at once: who waits for it later, for its result, is not seen to wait.
    """
    frames = _main_frames(dump)
    inner = list(takewhile(lambda frame: not _is_own(frame), frames))
    called = [frame["name"] for frame in inner if _DISTRIBUTED in frame["file"] and frame["name"] != "wrapper"]
    if called:
        return called[-1]
    waits = frames and not inner and ".wait(" in linecache.getline(frames[0]["file"], int(frames[0]["line"]))
    return "wait" if waits else None


def _main_frames(dump: str) -> list[re.Match[str]]:
    main = re.split(r"^(?:Current thread|Thread) .*$", dump, flags=re.MULTILINE)[-1]
    return [found for line in main.splitlines() if (found := _FRAME.match(line))]


def _is_own(frame: re.Match[str]) -> bool:
    return not is_library(frame["file"])


def is_library(file: str) -> bool:
    """Whether a file is Python's own or an installed package's."""
    return any(part in file for part in _LIBRARIES)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
