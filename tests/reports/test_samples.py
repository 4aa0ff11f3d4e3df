"""The sample reports of the documentation are what the tool makes today."""

from pathlib import Path

import pytest

from reports import Report, render
from reports.formats import FILE_NAMES

SAMPLES = Path(__file__).parents[2] / "docs" / "samples"
FORMATS = ("terminal", "html", "junit", "markdown")


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in SAMPLES.glob("*/report.json")))
@pytest.mark.parametrize("format", FORMATS)
def test_a_sample_is_up_to_date(folder: str, format: str) -> None:
    report = Report.from_json((SAMPLES / folder / "report.json").read_text(encoding="utf-8"))
    written = (SAMPLES / folder / FILE_NAMES[format]).read_text(encoding="utf-8")
    assert written == render(report, format, width=100), "docs/samples/README.md says how to make it again"


def test_every_sample_is_listed() -> None:
    text = (SAMPLES / "README.md").read_text(encoding="utf-8")
    folders = [path.name for path in SAMPLES.iterdir() if path.is_dir()]
    assert folders
    assert all(f"[{folder}]({folder}/" in text for folder in folders)
