"""A report in several formats at once: the first as the answer, each other one as a file of the folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.files.rundir import write_atomic
from reports import Report, render
from reports.formats import FILE_NAMES

TEXT_WIDTH = 100


def write_formats(report: Report, formats: Sequence[str], folder: Path) -> None:
    """Write `report` into `folder` (made if absent), once for each format, under the names of FILE_NAMES."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in formats:
        write_atomic(folder / FILE_NAMES[name], render(report, name, width=TEXT_WIDTH))
