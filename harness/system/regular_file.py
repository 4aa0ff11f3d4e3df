"""Whether a path leads to a file that can be read to its end. Standard library only.

Opening a named pipe waits for somebody to write, and a device may never end, so both are refused before.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def unreadable_kind(path: Path) -> str | None:
    """What is at `path` instead of a regular file, in words; None for one. Raises OSError as `stat` does."""
    mode = os.stat(path).st_mode
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def read_regular(path: Path) -> str:
    """The UTF-8 text of the regular file `path`; an OSError names anything else that is there."""
    if kind := unreadable_kind(path):
        raise OSError(0, kind, str(path))
    return path.read_text(encoding="utf-8")
