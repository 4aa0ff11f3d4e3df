"""Layout x quantity: where the bits differ at one glance, however many cases lie behind a cell."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.cases import CaseResult, Layout, QuantityResult
from reports.grouping import group
from reports.verdicts import Verdict

MAX_ROWS = 60
HEAT_LEVELS = 5


@dataclass(frozen=True)
class Cell:
    """One quantity at one layout, over all cases of a row."""

    results: tuple[QuantityResult, ...]

    @property
    def worst(self) -> QuantityResult | None:
        """The drifting result with the largest share of differing elements."""
        drifting = [result for result in self.results if result.verdict is Verdict.DRIFT]
        return max(drifting, key=lambda result: (drift_share(result), result.max_ulp), default=None)

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
        """0 where nothing drifts, else 1 to 5: one step for each power of ten of the differing share."""
        return heat(drift_share(self.worst)) if self.worst else 0


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


def drift_share(result: QuantityResult) -> float:
    """Return the share of elements that differ."""
    return result.mismatched / result.elements if result.elements else 0.0


def heat(share: float) -> int:
    """Return 0 for nothing and else 1 to 5, the level of a share from 0 to 1."""
    return 0 if share <= 0 else max(1, HEAT_LEVELS + math.ceil(math.log10(min(share, 1.0))))


def _row(members: Sequence[CaseResult], names: Sequence[str], by_batch: bool) -> MapRow:
    found: dict[str, list[QuantityResult]] = {}
    for case in members:
        for quantity in case.quantities:
            found.setdefault(quantity.name, []).append(quantity)
    first = members[0]
    cells = tuple(Cell(tuple(found.get(name, ()))) for name in names)
    return MapRow(first.op, first.batch if by_batch else "", first.layout, cells)
