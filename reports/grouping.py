"""Short ways to say many things: rows that stand for several cases, lists that end in a count."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from reports.cases import CaseResult
from reports.verdicts import Expect, Verdict

MAX_ROWS = 60
"""A table longer than this is grouped until it fits."""

Key = Callable[[CaseResult], Hashable]


@dataclass(frozen=True)
class CaseRow:
    """One line of the case table; it may stand for many cases of one verdict."""

    cases: tuple[CaseResult, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict that all of them share."""
        return self.cases[0].verdict

    @property
    def for_information(self) -> bool:
        """Whether they were only measured, with nothing expected."""
        return _information(self.cases[0])

    def cell(self, noun: str, value: Callable[[CaseResult], object]) -> str:
        """Return the value all cases share, or how many there are."""
        values = {str(value(case)) for case in self.cases}
        return values.pop() if len(values) == 1 else f"{len(values)} {noun}"

    @property
    def equal(self) -> str:
        """How many quantities are proven equal, `9/9`, or from the fewest to the most, `7/9 to 9/9`; or empty."""
        counted = sorted({_equal_of(case) for case in self.cases if case.quantities})
        return " to ".join(f"{equal}/{total}" for equal, total in dict.fromkeys((*counted[:1], *counted[-1:])))


def rows_of(cases: Sequence[CaseResult]) -> list[CaseRow]:
    """Return one row per case, or coarser groups of one verdict once there are more than MAX_ROWS."""
    for key in _KEYS:
        groups = group(cases, key)
        if len(groups) <= MAX_ROWS:
            break
    return [CaseRow(tuple(members)) for members in groups.values()]


def group(cases: Iterable[CaseResult], key: Key) -> dict[Hashable, list[CaseResult]]:
    """Return the cases by key, in order of first appearance."""
    groups: dict[Hashable, list[CaseResult]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return groups


def listed(items: Iterable[object], limit: int = 8) -> str:
    """Return distinct items with commas; beyond `limit`, how many more."""
    names = list(dict.fromkeys(map(str, items)))
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def ranges(numbers: Iterable[int], limit: int = 8) -> str:
    """Return numbers as ascending ranges, `3, 5-9`; beyond `limit` ranges, how many more."""
    spans: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return listed((str(low) if low == high else f"{low}-{high}" for low, high in spans), limit)


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Return `1 case`, `2 cases`; `many` is the plural where an s does not make it."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def _equal_of(case: CaseResult) -> tuple[int, int]:
    return sum(quantity.is_evidence for quantity in case.quantities), len(case.quantities)


def _information(case: CaseResult) -> bool:
    return case.expect is Expect.ANY


_KEYS: tuple[Key, ...] = (
    id,
    lambda case: (case.verdict, _information(case), case.op, case.layout, case.batch, _equal_of(case)),
    lambda case: (case.verdict, _information(case), case.op, case.layout),
    lambda case: (case.verdict, _information(case)),
)
