"""The planted faults that were seen: one line each, with the quantity that gave it away."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports.cases import CaseResult
from reports.grouping import group, listed
from reports.ink import Ink
from reports.labels import fault_name, shown_by
from reports.ranking import verdict_words
from reports.verdicts import Expect

_MAX_ROWS = 20
_MAX_LAYOUTS = 4
_LEAST_EVIDENCE = 22
_BLANKS = 6


def fault_blocks(seen: Sequence[CaseResult], ink: Ink) -> Iterator[RenderableType]:
    """Yield a line for each fault, as columns where they fit; beyond the first twenty only their number."""
    groups = list(group(seen, fault_name).values())
    rows = [_cells(members) for members in groups[:_MAX_ROWS]]
    if _fits(rows, ink):
        yield Padding(_table(rows, ink), (0, 0, 0, 2))
    else:
        for name, layouts, evidence in rows:
            yield ink.line(f"{name} {layouts} {evidence}", indent=2)
    if hidden := groups[_MAX_ROWS:]:
        yield ink.line(f"and {len(hidden):,} more", indent=2)


def _cells(members: Sequence[CaseResult]) -> tuple[str, str, str]:
    times = f" (x{len(members):,})" if len(members) > 1 else ""
    layouts = listed((case.layout for case in members), _MAX_LAYOUTS)
    return fault_name(members[0]) + times, layouts, _evidence(members[0])


def _evidence(case: CaseResult) -> str:
    if case.expect is Expect.REFUSED:
        return f"[{verdict_words(case)}]"
    return shown_by(case)


def _fits(rows: Sequence[Sequence[str]], ink: Ink) -> bool:
    """Whether no name and no layout has to be broken to leave the evidence a column worth reading."""
    widths = [max(cell_len(ink.clean(cell)) for cell in column) for column in zip(*rows, strict=True)]
    return sum(widths[:2]) + min(widths[2], _LEAST_EVIDENCE) + _BLANKS <= ink.columns


def _table(rows: Sequence[Sequence[str]], ink: Ink) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for style, whole in (("", True), ("", True), ("dim", False)):
        table.add_column(overflow="fold", style=style, no_wrap=whole)
    for cells in rows:
        table.add_row(*(Text(ink.clean(cell)) for cell in cells))
    return table
