"""Errors of the system that say there is no room left."""

from __future__ import annotations

import errno


def is_full(error: Exception) -> bool:
    """Whether a disk, a quota or a limit left no room: nobody's mistake, and no fault of the program."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
