"""The folder of --out, judged before anything runs. Never imports torch."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from grpo_contract import Problem
from harness.settings.request_error import RequestError
from harness.system.regular_file import read_regular
from reports import ReportFormatError
from reports.loading import check_is_report

REPORT = "report.json"


def check_out(folder: Path | None, where: str) -> None:
    """Raise RequestError when a report cannot be kept in `folder`, or would replace a foreign report.json."""
    if folder is not None:
        check_folder(folder, where)
        if got := _foreign_report(folder):
            raise RequestError(Problem("request.out", where, "a folder to write into", got))


def check_folder(folder: Path, where: str) -> None:
    """Raise RequestError when `folder` cannot be, or become, a folder to write into; nothing stays behind."""
    try:
        got = _why_unusable(folder)
    except OSError as error:
        got = f"{_shortened(str(folder))}: {error.strerror}"
    if got:
        raise RequestError(Problem("request.out", where, "a folder to write into", got))


def check_there(folder: Path) -> None:
    """Raise RequestError when there is no folder to look into; an empty one is a folder."""
    if not os.path.lexists(folder):
        file = next((each for each in folder.parents if os.path.isfile(each)), None)
        got = "nothing" if file is None else f"{file}, which is a file"
        raise RequestError(Problem("request.folder", _shortened(str(folder)), "a folder with a snapshot", got))


def _why_unusable(folder: Path) -> str | None:
    missing = [each for each in (folder, *folder.absolute().parents) if not each.exists()]
    nearest = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not nearest.is_dir():
        return f"{nearest}, which is a file"
    if not os.access(nearest, os.W_OK):
        return f"{nearest}, which cannot be written to"
    _try_to_make(missing[::-1])
    return None


def _try_to_make(folders: list[Path]) -> None:
    """Only an attempt tells: /proc says that root may write to it. Raises OSError."""
    made: list[Path] = []
    try:
        for folder in folders:
            folder.mkdir()
            made.append(folder)
    finally:
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()


def _foreign_report(folder: Path) -> str | None:
    """A report of ours is replaced by the next; what somebody else keeps under its name is not."""
    path = folder / REPORT
    if not os.path.lexists(path):
        return None
    try:
        check_is_report(read_regular(path))
    except (ReportFormatError, UnicodeDecodeError, OSError):
        return f"{folder}, whose {REPORT} is no report of grpo-verify"
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:40]}...{text[-20:]}"
