"""What the launched command and its ranks printed: tails for people, and torchrun's own account of deaths."""

from __future__ import annotations

import re

from harness.files.rundir import RunDir, read_text

TAIL_LINES = 40
# When one rank dies torchrun ends the others, naming each beforehand; afterwards it names the one that died.
_CLOSED = re.compile(r"Sending process (\d+) closing signal")
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")


def closed_pids(rundir: RunDir) -> set[int]:
    """The processes that torchrun itself told to end: victims, not culprits."""
    return {int(pid) for pid in _CLOSED.findall(read_text(rundir.launcher_log) or "")}


def first_failure(rundir: RunDir) -> tuple[int, int] | None:
    """Rank and exit code of the rank that torchrun saw fail first; minus a signal's number when killed."""
    found = _FAILED.search(read_text(rundir.launcher_log) or "")
    return (int(found[2]), int(found[1])) if found else None


def tail(rundir: RunDir, ranks: tuple[int, ...] = ()) -> str:
    """The last lines of the first of `ranks` that printed anything, or else of the launched command."""
    for rank in ranks:
        for name in ("stderr.log", "stdout.log"):
            for path in sorted(rundir.logs.glob(f"*/attempt_0/{rank}/{name}")):
                if text := _last_lines(read_text(path)):
                    return text
    return _last_lines(read_text(rundir.launcher_log))


def _last_lines(text: str | None) -> str:
    return "\n".join((text or "").rstrip().splitlines()[-TAIL_LINES:])
