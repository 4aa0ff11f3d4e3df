"""The table of cases: one row each, or one row for many."""

from rich.table import Table
from rich.text import Text

from reports.cases import CaseResult
from reports.grouping import CaseRow
from reports.ink import STYLES, Ink

_WIDE = 80


def case_table(rows: list[CaseRow], ink: Ink) -> Table:
    """Return the table; below 80 columns words get shorter and a seed that all share is left out."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    wide = ink.columns >= _WIDE
    seeds = wide or len({case.seed for row in rows for case in row.cases}) > 1
    grouped = any(len(row.cases) > 1 for row in rows)
    table.add_column("cases" if grouped else "case", overflow="fold")
    table.add_column("layout", no_wrap=not grouped)
    table.add_column("batch", overflow="fold")
    if seeds:
        table.add_column("seed", no_wrap=not grouped)
    table.add_column("verdict", no_wrap=True)
    table.add_column("bitwise equal" if wide else "equal", no_wrap=wide)
    for row in rows:
        cells = _cells(row, seeds)
        verdict = Text(row.verdict.value, style="" if row.for_information else STYLES[row.verdict])
        table.add_row(*(Text(ink.clean(cell)) for cell in cells), verdict, _score_cell(row, wide))
    return table


def _cells(row: CaseRow, seeds: bool) -> list[str]:
    many = len(row.cases) > 1
    names = f"{len(row.cases):,} cases" if many else row.cases[0].name
    if row.for_information:
        names += " (for information)"
    cells = [
        names,
        row.cell("layouts", lambda case: case.layout),
        row.cell("batches", lambda case: case.batch),
    ]
    return [*cells, row.cell("seeds", _seed)] if seeds else cells


def _seed(case: CaseResult) -> str:
    return "-" if case.seed is None else str(case.seed)


def _score_cell(row: CaseRow, wide: bool) -> str:
    equal = row.equal or "-"
    return f"{equal} quantities" if wide and "/" in equal else equal
