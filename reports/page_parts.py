"""What the page shows of drifting and of stopped cases, as plain data for its template."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from reports.cases import CaseResult, QuantityResult
from reports.diagnosis import Bin, HeatMap
from reports.grouping import MAX_ROWS, group, listed
from reports.labels import title
from reports.ranking import worst_first
from reports.verdicts import Verdict

_MAX_DETAILED = 20
_MAX_MAPS = 12
_HEAT_LEVELS = 5


@dataclass(frozen=True)
class Bar:
    """One bar: what it counts, how many (of how many), and its length in percent of the longest."""

    name: str
    count: int
    percent: float
    total: int = 0


@dataclass(frozen=True)
class AxisShares:
    """The drifting parts of one axis, and how many parts are clean."""

    name: str
    bars: tuple[Bar, ...]
    clean: int


@dataclass(frozen=True)
class MapCell:
    """A count that fits a small cell, its heat (0 for nothing, 5 for the most), and in words what and where."""

    text: str
    heat: int
    words: str


@dataclass(frozen=True)
class PositionMap:
    """Sequences down, token positions across: the drifting elements of each cell."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[MapCell, ...]], ...]


@dataclass(frozen=True)
class QuantityPage:
    """One drifting quantity."""

    result: QuantityResult
    histogram: tuple[Bar, ...]
    shares: tuple[AxisShares, ...]
    positions: PositionMap | None

    @property
    def is_located(self) -> bool:
        """Whether its first drift has a place, unlike that of a scalar."""
        return self.result.first is not None and self.result.first.sequence is not None


@dataclass(frozen=True)
class DriftPages:
    """The drifting cases that are shown in full, and how many are not."""

    cases: tuple[tuple[CaseResult, tuple[QuantityPage, ...]], ...]
    hidden: int


@dataclass(frozen=True)
class Reason:
    """Cases that ended alike, for one reason."""

    verdict: Verdict
    count: int
    names: str
    words: str


def drift_pages(cases: Iterable[CaseResult]) -> DriftPages:
    """Return the drifting cases, those that count first; the pictures of the first dozen quantities only."""
    drifting = [case for case in worst_first(cases) if case.verdict is Verdict.DRIFT]
    room = iter(range(_MAX_MAPS))
    pages = [
        (case, tuple(_quantity_page(quantity, room) for quantity in case.drifted))
        for case in drifting[:_MAX_DETAILED]
    ]
    return DriftPages(tuple(pages), max(0, len(drifting) - _MAX_DETAILED))


def reasons(cases: Iterable[CaseResult]) -> list[Reason]:
    """Return what stopped, proved nothing or was left out, by reason; the most urgent first."""
    told = [case for case in worst_first(cases) if case.verdict not in (Verdict.MATCH, Verdict.DRIFT)]
    groups = list(group(told, lambda case: (case.verdict, case.reason)).values())
    return [
        Reason(members[0].verdict, len(members), listed(map(title, members)), members[0].reason or "-")
        for members in groups[:MAX_ROWS]
    ]


def plain(value: object) -> str:
    """Return a JSON value as text; text as it is."""
    return value if isinstance(value, str) else json.dumps(value)


def _quantity_page(quantity: QuantityResult, room: Iterator[int]) -> QuantityPage:
    histogram = tuple(_histogram(quantity))
    if not (quantity.heat_map or quantity.shares) or next(room, None) is None:
        return QuantityPage(quantity, histogram, (), None)
    shares = tuple(axis for axis in _shares(quantity) if axis.bars)
    positions = _positions(quantity.heat_map) if quantity.heat_map and quantity.heat_map.rows else None
    return QuantityPage(quantity, histogram, shares, positions)


def _histogram(quantity: QuantityResult) -> Iterator[Bar]:
    counts = quantity.ulp_histogram
    used = [digits for digits, count in enumerate(counts) if count]
    most = max((*counts, quantity.not_numbers, 1))
    for digits in range(used[0], used[-1] + 1) if used else ():
        yield Bar(_distance(digits), counts[digits], 100 * counts[digits] / most)
    if quantity.not_numbers:
        yield Bar("a NaN on one side", quantity.not_numbers, 100 * quantity.not_numbers / most)


def _distance(digits: int) -> str:
    """The ULP distances that have so many binary digits."""
    if digits < 2:
        return ("+0 against -0", "1")[digits]
    return f"{2 ** (digits - 1):,} to {2**digits - 1:,}"


def _shares(quantity: QuantityResult) -> Iterator[AxisShares]:
    shares = quantity.shares
    if shares is None:
        return
    axes = {"sequence": shares.sequence, "token position": shares.token, "vocabulary tile": shares.tile}
    for name, bins in axes.items():
        yield _axis(name, [(_span(each), each.mismatched, each.elements) for each in bins])
    yield _axis("owner rank", [(f"tp={r.tp} dp={r.dp}", r.mismatched, r.elements) for r in shares.rank])


def _axis(name: str, parts: list[tuple[str, int, int]]) -> AxisShares:
    drifting = [(name, count, total) for name, count, total in parts if count and total]
    most = max((count / total for _, count, total in drifting), default=1.0)
    bars = tuple(Bar(name, count, 100 * count / total / most, total) for name, count, total in drifting)
    return AxisShares(name, bars, len(parts) - len(bars))


def _span(each: Bin) -> str:
    return _indices(each.start, each.stop - each.start)


def _indices(start: int, width: int) -> str:
    return str(start) if width == 1 else f"{start}-{start + width - 1}"


def _positions(counted: HeatMap) -> PositionMap:
    most = max((count for row in counted.rows for count in row), default=0)
    tokens = [_indices(index * counted.token_width, counted.token_width) for index in range(_columns(counted))]
    rows = []
    for index, row in enumerate(counted.rows):
        name = _indices(counted.sequence_start + index * counted.sequence_width, counted.sequence_width)
        cells = [
            _cell(count, most, f"sequence {name}, token {token}")
            for count, token in zip(row, tokens, strict=False)
        ]
        rows.append((name, tuple(cells)))
    return PositionMap(tuple(token.partition("-")[0] for token in tokens), tuple(rows))


def _columns(counted: HeatMap) -> int:
    return max(map(len, counted.rows))


def _cell(count: int, most: int, where: str) -> MapCell:
    return MapCell(_short(count), _heat(count, most), f"{where}: {count:,}")


def _short(count: int) -> str:
    """A count in at most four characters, rounded down; a dot for none."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            whole, tenth = count // unit, count * 10 // unit % 10
            return f"{whole}.{tenth}{name}" if whole < 10 and tenth else f"{whole}{name}"
    return str(count or "·")


def _heat(count: int, most: int) -> int:
    """0 for nothing, 5 for the most; each level below stands for half."""
    return max(1, _HEAT_LEVELS + math.ceil(math.log2(count / most))) if count else 0
