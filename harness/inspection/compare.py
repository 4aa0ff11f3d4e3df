"""`grpo-verify compare A B`: two reports or two snapshots, what changed around them and then in their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grpo_contract import Problem
from harness.comparing.entry import Entry
from harness.inspection.comparison import Comparison
from harness.inspection.report_comparison import compare_reports
from harness.inspection.snapshot_comparison import compare_entries
from harness.settings.out_folder import REPORT
from harness.settings.request_error import RequestError
from harness.system.regular_file import read_regular
from reports import Report, ReportFormatError

Subject = Report | Sequence[Entry]


def load_subject(path: Path) -> Subject:
    """The report in a file or an --out folder, or the entries of a snapshot folder. Raises RequestError."""
    if path.is_dir() and not (path / REPORT).exists():
        from harness.snapshots.store import read_entries  # needs torch's neighbours; a report does not

        entries = read_entries(path)
        if entries:
            return entries
        raise RequestError(
            Problem("request.compare", str(path), "a report or a snapshot", "a folder with neither")
        )
    file = path / REPORT if path.is_dir() else path
    try:
        return Report.from_json(read_regular(file))
    except (OSError, UnicodeDecodeError, ReportFormatError) as error:
        got = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RequestError(Problem("request.compare", str(path), "a report or a snapshot", got)) from None


def compare_subjects(one: Subject, other: Subject, folders: tuple[Path, Path]) -> Comparison:
    """Compare two of a kind. Raises RequestError for a report against a snapshot."""
    if isinstance(one, Report) and isinstance(other, Report):
        return compare_reports(one, other)
    if isinstance(one, Report) or isinstance(other, Report):
        got = "a report and a snapshot"
        raise RequestError(Problem("request.compare", "A and B", "two reports or two snapshots", got))
    return compare_entries(one, other, folders)
