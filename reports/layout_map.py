"""Layout x quantity: where the bits differ at one glance, however many cases lie behind a cell."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.cases import CaseResult, Layout, QuantityResult
from reports.grouping import group
from reports.verdicts import Verdict

MAX_ROWS = 60
ULP_STEPS = (4, 64, 4096, 2**20)
"""A cell is a level hotter from each of these ULP distances on."""


@dataclass(frozen=True)
class Cell:
    """One quantity at one layout, over all cases of a row."""

    results: tuple[QuantityResult, ...]

    @property
    def worst(self) -> QuantityResult | None:
        """The drifting result that is furthest off."""
        drifting = [result for result in self.results if result.verdict is Verdict.DRIFT]
        return max(drifting, key=lambda result: (result.max_ulp, result.mismatched), default=None)

    @property
    def state(self) -> str:
        """`drift`, `equal`, `blind` (nothing could have shown a difference) or `absent`."""
        if self.worst:
            return "drift"
        if any(result.is_evidence for result in self.results):
            return "equal"
        return "blind" if self.results else "absent"

    @property
    def heat(self) -> int:
        """0 where nothing drifts, else 1 to 5, by the largest ULP distance: rounding is 1, a wrong value 5."""
        return 1 + bisect_right(ULP_STEPS, self.worst.max_ulp) if self.worst else 0


@dataclass(frozen=True)
class MapRow:
    """One layout of one batch, or of all of them where `batch` is empty."""

    op: str
    batch: str
    layout: Layout
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class LayoutMap:
    """The quantities across, the layouts down."""

    quantities: tuple[str, ...]
    rows: tuple[MapRow, ...]
    hidden: int


def layout_map(cases: Iterable[CaseResult]) -> LayoutMap:
    """Return the map of the cases that compared something; planted faults are not part of it."""
    compared = [case for case in cases if case.quantities and not case.expect.is_planted]
    names = tuple(dict.fromkeys(quantity.name for case in compared for quantity in case.quantities))
    groups = group(compared, lambda case: (case.op, case.batch, case.layout))
    by_batch = len(groups) <= MAX_ROWS
    if not by_batch:
        groups = group(compared, lambda case: (case.op, case.layout))
    rows = [_row(members, names, by_batch) for members in groups.values()]
    batches = list(dict.fromkeys(row.batch for row in rows))
    rows.sort(key=lambda row: (row.op, batches.index(row.batch), row.layout.tp, row.layout.dp))
    return LayoutMap(names, tuple(rows[:MAX_ROWS]), max(0, len(rows) - MAX_ROWS))


def _row(members: Sequence[CaseResult], names: Sequence[str], by_batch: bool) -> MapRow:
    found: dict[str, list[QuantityResult]] = {}
    for case in members:
        for quantity in case.quantities:
            found.setdefault(quantity.name, []).append(quantity)
    first = members[0]
    cells = tuple(Cell(tuple(found.get(name, ()))) for name in names)
    return MapRow(first.op, first.batch if by_batch else "", first.layout, cells)
