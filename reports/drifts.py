"""The part of a terminal report that says what drifted, by how much, where first, and who owns it."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table

from reports.cases import CaseResult, FirstDrift, QuantityResult
from reports.grouping import plural, ranges
from reports.ink import STYLES, Ink
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


def label(case: CaseResult) -> str:
    """Return what tells this case from its neighbours, in one line."""
    seed = "" if case.seed is None else f", seed {case.seed}"
    via = f", {case.transport}" if case.transport else ""
    return f"{title(case)}, batch {case.batch}{seed}{via}"


def title(case: CaseResult) -> str:
    """Return the name of a case and what it leaves unsaid: the layout, and that it counts for nothing."""
    layout = "" if str(case.layout) in case.name else str(case.layout)
    purpose = "for information" if case.expect is Expect.ANY else ""
    extras = ", ".join(filter(None, (layout, purpose)))
    return f"{case.name} ({extras})" if extras else case.name


def _case_blocks(case: CaseResult, ink: Ink) -> Iterator[RenderableType]:
    yield ""
    yield ink.line(f"drift in {label(case)}", "bold" if case.expect is Expect.ANY else STYLES[Verdict.DRIFT])
    if case.reason:
        yield ink.line(case.reason, indent=2)
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
        table.add_row(name, _how_many(quantity), f"{quantity.max_ulp:,}", f"{quantity.max_abs:.3g}", pattern)
    return table


def _quantity_blocks(quantity: QuantityResult, ink: Ink, sizes: bool) -> Iterator[RenderableType]:
    if sizes:
        yield ink.line(f"{quantity.name}: {_sizes(quantity)}", indent=2)
    if quantity.first:
        prefix = "first" if sizes else f"first in {quantity.name}"
        yield ink.line(f"{prefix}: {_place(quantity.first)}", indent=4)
        for text in _values(quantity.first):
            yield ink.line(text, indent=6)
    if quantity.sequences:
        yield ink.line(f"sequences affected: {ranges(quantity.sequences)}", indent=6 if quantity.first else 4)


def _sizes(quantity: QuantityResult) -> str:
    pattern = f", {quantity.pattern}" if quantity.pattern else ""
    worst = f"max ULP {quantity.max_ulp:,}, max abs {quantity.max_abs:.3g}"
    return f"{_how_many(quantity)} elements drifted, {worst}{pattern}"


def _how_many(quantity: QuantityResult) -> str:
    return f"{quantity.mismatched:,} of {quantity.elements:,}"


def _place(first: FirstDrift) -> str:
    parts = {"sequence": first.sequence, "token": first.token, "vocab column": first.column}
    place = ", ".join(f"{name} {index}" for name, index in parts.items() if index is not None)
    owner = f", on rank {first.owner}" if first.owner else ""
    return (place or "the whole value") + owner


def _values(first: FirstDrift) -> tuple[str, str]:
    span = max(len(first.expected), len(first.got))
    return (
        f"expected {first.expected:<{span}} ({first.expected_bits})",
        f"got      {first.got:<{span}} ({first.got_bits})",
    )
