"""The registry of report formats: one report in, one text out."""

from typing import Protocol

from reports.model import Report


class Renderer(Protocol):
    """Turns a report into text; a format without columns or colours ignores those settings."""

    def __call__(self, report: Report, *, width: int, color: bool, unicode: bool, quiet: bool) -> str: ...


def _terminal(report: Report, *, width: int, color: bool, unicode: bool, quiet: bool) -> str:
    # Imported on demand: whoever only builds or saves a report never loads rich.
    from reports.terminal import render_terminal

    return render_terminal(report, width=width, color=color, unicode=unicode, quiet=quiet)


def _json(report: Report, *, width: int, color: bool, unicode: bool, quiet: bool) -> str:
    return report.to_json()


RENDERERS: dict[str, Renderer] = {"terminal": _terminal, "json": _json}
"""Every known format by name."""


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
