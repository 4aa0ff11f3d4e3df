"""The sample reports of the documentation are what the tool makes today."""

from pathlib import Path

import pytest

from reports import Report, render
from reports.formats import FILE_NAMES

SAMPLES = Path(__file__).parents[2] / "docs" / "samples"
FORMATS = ("terminal", "html", "junit", "markdown")
README = (SAMPLES / "README.md").read_text(encoding="utf-8")
# Whatever was put there, made on this machine or on another.
FOLDERS = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())


def report_of(folder: str) -> Report:
    return Report.from_json((SAMPLES / folder / "report.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_sample_is_up_to_date(folder: str, format: str) -> None:
    written = (SAMPLES / folder / FILE_NAMES[format]).read_text(encoding="utf-8")
    assert written == render(report_of(folder), format, width=100), (
        "docs/samples/README.md says how to make it again"
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_sample_loads_and_renders_in_every_format(folder: str) -> None:
    report = report_of(folder)
    assert Report.from_json(report.to_json()) == report
    for format in FILE_NAMES:
        assert render(report, format).strip(), format


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_sample_shows_a_drift_and_how_it_was_made(folder: str) -> None:
    report = report_of(folder)
    assert report.exit_status == 1
    assert any(case.diagnosis for case in report.cases)
    assert " ".join(report.command) in " ".join(README.replace("\\\n", " ").split())
    assert not [value for value in report.command if value.startswith("/")]


def test_every_sample_is_listed() -> None:
    assert FOLDERS
    assert all(f"[{folder}]({folder}/" in README for folder in FOLDERS)
