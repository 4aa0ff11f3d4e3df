"""What the terminal can show, and output that survives a reader who left."""

from __future__ import annotations

import io
import os
import select
import shutil
import sys
from typing import TextIO, TypedDict

MOST_COLUMNS = 1000
"""No report is wider, whatever COLUMNS says."""


class Look(TypedDict):
    """The settings of a renderer."""

    width: int
    color: bool
    unicode: bool


def look_of(stream: TextIO, color: str = "auto", width: int | None = None) -> Look:
    """How to render for `stream`; NO_COLOR and FORCE_COLOR decide what `auto` leaves open."""
    columns = width or min(shutil.get_terminal_size(fallback=(80, 24)).columns, MOST_COLUMNS)
    return {"width": columns, "color": _wants_color(stream, color), "unicode": _has_unicode(stream)}


def speak_utf8(stream: TextIO) -> None:
    """Write UTF-8 whatever the locale says: a document that declares its encoding must be in it."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8")


class _Absent(io.TextIOWrapper):
    """In place of a stdout that is not there: it takes text, and fails when that is flushed."""


def is_absent(stream: TextIO) -> bool:
    """Whether the process was started without this stream, so that what is written there is nowhere."""
    return isinstance(stream, _Absent)


def open_missing_streams() -> None:
    """Streams for a process that was started without stdout or stderr (`>&-`).

    An answer on no stdout would be lost, so it fails to be written; a message on no stderr goes quiet.
    """
    if sys.stdout is None:
        nothing = os.fdopen(os.open(os.devnull, os.O_RDONLY), "wb")
        sys.stdout = _Absent(nothing, encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def write(stream: TextIO, text: str) -> None:
    """Write and flush; a reader that is gone, or letters the encoding lacks, are no reason to fail.

    Raises OSError for a stream that takes no more, as on a full disk; stderr then goes quiet instead.
    """
    try:
        _write_all(stream, _encodable(stream, text))
        stream.flush()
    except OSError as error:
        _silence(stream)
        if not isinstance(error, BrokenPipeError) and stream is not sys.stderr:
            raise
    except BaseException:
        _silence(stream)
        raise


def _write_all(stream: TextIO, text: str) -> None:
    """Unbuffered (PYTHONUNBUFFERED, -u), a stream drops what a write leaves over when a signal cuts it short."""
    raw = getattr(stream, "buffer", None)
    if not isinstance(raw, io.FileIO):
        stream.write(text)
        return
    left = memoryview(text.encode(stream.encoding or "utf-8"))
    while left:
        written = raw.write(left)
        if written is None:  # it does not block, and is full
            select.select([], [raw], [])
        left = left[written or 0 :]


def _silence(stream: TextIO) -> None:
    """Whatever is left in the buffer would block or raise again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _encodable(stream: TextIO, text: str) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _wants_color(stream: TextIO, color: str) -> bool:
    if color != "auto":
        return color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def _has_unicode(stream: TextIO) -> bool:
    if _is_plain_locale():
        return False
    try:
        "✓─×".encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_plain_locale() -> bool:
    """Whether the C locale was asked for: Python speaks UTF-8 there all the same, the terminal need not."""
    if os.environ.get("PYTHONUTF8") or os.environ.get("PYTHONIOENCODING"):
        return False
    chosen = (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next(filter(None, chosen), "") in ("C", "POSIX")
