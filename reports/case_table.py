"""The table of cases: one row each, or one row for many."""

import re
from collections.abc import Callable

from rich.table import Table
from rich.text import Text

from reports.cases import CaseResult
from reports.grouping import CaseRow
from reports.ink import STYLES, Ink

_WIDE = 80
_NARROW = 60


def case_table(rows: list[CaseRow], ink: Ink) -> Table:
    """Return the table; below 80 columns words get shorter and a seed that all share is left out.

    Below 60 a layout or a batch that the names tell in any case is left out as well.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    wide = ink.columns >= _WIDE
    grouped = any(len(row.cases) > 1 for row in rows)
    places = _places(rows, ink)
    table.add_column("cases" if grouped else "case", overflow="fold")
    for header in places:
        table.add_column(header, overflow="fold", no_wrap=header != "batch" and not grouped)
    table.add_column("verdict", no_wrap=True)
    table.add_column("bitwise equal" if wide else "equal", no_wrap=wide)
    for row in rows:
        cells = [_name(row), *(row.cell(*_PLACES[header]) for header in places)]
        verdict = Text(row.verdict.value, style="" if row.for_information else STYLES[row.verdict])
        table.add_row(*(Text(ink.clean(cell)) for cell in cells), verdict, _score_cell(row, wide))
    return table


def _name(row: CaseRow) -> str:
    name = f"{len(row.cases):,} cases" if len(row.cases) > 1 else row.cases[0].name
    return f"{name} (for information)" if row.for_information else name


def _places(rows: list[CaseRow], ink: Ink) -> list[str]:
    """The headers of the columns between the name and the verdict."""
    if ink.columns >= _WIDE:
        return list(_PLACES)
    seeds = {case.seed for row in rows for case in row.cases}
    names = ["layout", "batch", *(["seed"] if len(seeds) > 1 else [])]
    return [name for name in names if name == "seed" or ink.columns >= _NARROW or not _is_told(rows, name)]


def _is_told(rows: list[CaseRow], place: str) -> bool:
    return all(_has_word(_name(row), row.cell(*_PLACES[place])) for row in rows)


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])", text) is not None


def _seed(case: CaseResult) -> str:
    return "-" if case.seed is None else str(case.seed)


def _score_cell(row: CaseRow, wide: bool) -> str:
    equal = row.equal or "-"
    return f"{equal} quantities" if wide and "/" in equal else equal


_PLACES: dict[str, tuple[str, Callable[[CaseResult], object]]] = {
    "layout": ("layouts", lambda case: case.layout),
    "batch": ("batches", lambda case: case.batch),
    "seed": ("seeds", _seed),
}
"""What several values of a column are called, and the value of one case."""
