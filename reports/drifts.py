"""The part of a terminal report that says what drifted, by how much, where first, and who owns it."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table

from reports.cases import CaseResult, FirstDrift, QuantityResult
from reports.grouping import plural, ranges
from reports.ink import STYLES, Ink
from reports.labels import drifted, how_many, label, place
from reports.verdicts import Expect, Verdict

_MAX_DETAILED = 12
_TABLE_WIDTH = 100


def drift_blocks(cases: Sequence[CaseResult], ink: Ink) -> Iterator[RenderableType]:
    """Yield the details of each drifting case; beyond the first dozen only their number."""
    drifting = [case for case in cases if case.verdict is Verdict.DRIFT]
    for case in drifting[:_MAX_DETAILED]:
        yield from _case_blocks(case, ink)
    if hidden := drifting[_MAX_DETAILED:]:
        yield ""
        yield ink.line(f"and {plural(len(hidden), 'more drifting case')}; the JSON report holds all of them")


def _case_blocks(case: CaseResult, ink: Ink) -> Iterator[RenderableType]:
    yield ""
    yield ink.line(f"drift in {label(case)}", "bold" if case.expect is Expect.ANY else STYLES[Verdict.DRIFT])
    explained = case.diagnosis.words if case.diagnosis else None
    for words in filter(None, (case.reason, explained)):
        yield ink.line(words, indent=2)
    wide = ink.columns >= _TABLE_WIDTH
    if wide and case.drifted:
        yield Padding(_quantity_table(case.drifted, ink), (0, 0, 0, 2))
    for quantity in case.drifted:
        yield from _quantity_blocks(quantity, ink, sizes=not wide)


def _quantity_table(quantities: Sequence[QuantityResult], ink: Ink) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for header in ("quantity", "elements that drifted", "max ULP", "max abs", "pattern"):
        table.add_column(header, overflow="fold")
    for quantity in quantities:
        name, pattern = ink.clean(quantity.name), ink.clean(quantity.pattern or "-")
        table.add_row(name, how_many(quantity), f"{quantity.max_ulp:,}", f"{quantity.max_abs:.3g}", pattern)
    return table


def _quantity_blocks(quantity: QuantityResult, ink: Ink, sizes: bool) -> Iterator[RenderableType]:
    if sizes:
        yield ink.line(f"{quantity.name}: {_sizes(quantity)}", indent=2)
    if quantity.first:
        prefix = "first" if sizes else f"first in {quantity.name}"
        yield ink.line(f"{prefix}: {place(quantity.first)}", indent=4)
        for text in _values(quantity.first):
            yield ink.line(text, indent=6)
    if quantity.sequences:
        yield ink.line(f"sequences affected: {ranges(quantity.sequences)}", indent=6 if quantity.first else 4)


def _sizes(quantity: QuantityResult) -> str:
    pattern = f", {quantity.pattern}" if quantity.pattern else ""
    worst = f"max ULP {quantity.max_ulp:,}, max abs {quantity.max_abs:.3g}"
    return f"{drifted(quantity)}, {worst}{pattern}"


def _values(first: FirstDrift) -> tuple[str, str]:
    span = max(len(first.expected), len(first.got))
    return (
        f"expected {first.expected:<{span}} ({first.expected_bits})",
        f"got      {first.got:<{span}} ({first.got_bits})",
    )
