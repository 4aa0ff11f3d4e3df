"""The registry of report formats: one report in, one text out."""

from importlib import import_module
from typing import Protocol

from reports.model import Report


class Renderer(Protocol):
    """Turns a report into text; a format without columns or colours ignores those settings."""

    def __call__(self, report: Report, *, width: int, color: bool, unicode: bool, quiet: bool) -> str: ...


def _terminal(report: Report, *, width: int, color: bool, unicode: bool, quiet: bool) -> str:
    # Imported on demand, like every format: whoever only builds or saves a report never loads rich or jinja2.
    from reports.terminal import render_terminal

    return render_terminal(report, width=width, color=color, unicode=unicode, quiet=quiet)


def _json(report: Report, *, width: int, color: bool, unicode: bool, quiet: bool) -> str:
    return report.to_json()


def _document(module: str) -> Renderer:
    """The renderer `render_<module>` of `reports.<module>`, for a format that looks the same everywhere."""

    def renderer(report: Report, *, width: int, color: bool, unicode: bool, quiet: bool) -> str:
        text: str = getattr(import_module(f"reports.{module}"), f"render_{module}")(report)
        return text

    return renderer


RENDERERS: dict[str, Renderer] = {
    "terminal": _terminal,
    "json": _json,
    "html": _document("html"),
    "junit": _document("junit"),
    "github": _document("github"),
    "markdown": _document("markdown"),
    "sarif": _document("sarif"),
}
"""Every known format by name."""

FILE_NAMES = {
    "terminal": "report.txt",
    "json": "report.json",
    "html": "report.html",
    "junit": "report.junit.xml",
    "github": "report.github.md",
    "markdown": "report.md",
    "sarif": "report.sarif",
}
"""What a report is called in a folder, by format."""


def render(
    report: Report,
    format: str,
    *,
    width: int = 80,
    color: bool = False,
    unicode: bool = True,
    quiet: bool = False,
) -> str:
    """Return `report` as text in the named format; raise ValueError for an unknown one."""
    if format not in RENDERERS:
        raise ValueError(f"report format: expected one of {', '.join(RENDERERS)}, got {format!r}")
    return RENDERERS[format](report, width=width, color=color, unicode=unicode, quiet=quiet)
