"""A report as a file: written in one step, and never lost without a word when the disk is full."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.files.rundir import write_atomic
from reports import Report, ReportVerdict

# Less than this and a run directory has no room for one more result.
LEAST_FREE = 1 << 16


def keep(report: Report, path: Path) -> Report:
    """Write `report` to `path`. Where that fails the returned report says so, and that the run broke."""
    try:
        write_atomic(path, report.to_json())
    except OSError as error:
        return _unkept(report, f"the report could not be written to {path}: {error.strerror}")
    return report


def full_disk(folder: Path) -> str | None:
    """Words for a disk without room, which makes ranks die without being able to say why."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return None
    return f"the disk that holds {folder} is full" if free < LEAST_FREE else None


def _unkept(report: Report, why: str) -> Report:
    """An interruption stays what it is; anything milder becomes a broken run."""
    changes: dict[str, object] = {"notes": (*report.notes, why)}
    if report.verdict.severity < ReportVerdict.FAILED.severity:
        changes |= {"verdict": ReportVerdict.FAILED, "exit_status": 4, "culprit": why}
    return Report.model_validate(report.model_dump() | changes)
