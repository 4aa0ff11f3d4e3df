"""The pieces of a Markdown report, the most urgent first; each ends in a line break and stands alone."""

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence

from reports.cases import CaseResult, QuantityResult
from reports.closing import closing_sentence, planted
from reports.escaping import for_markdown, prose
from reports.evidence import evidence_lines
from reports.facts import facts
from reports.grouping import MAX_ROWS, CaseRow, group, listed, plural, rows_of
from reports.labels import fault_name, how_many, label, place, shortened, shown_by, title, values
from reports.layout_map import Cell, layout_map
from reports.model import Report
from reports.ranking import is_trouble, verdict_words, worst_first
from reports.verdicts import ReportVerdict, Verdict, is_seen

_MAX_DETAILED = 10
_MARKS = {ReportVerdict.MATCH: "✅", ReportVerdict.INCONCLUSIVE: "⚠️"}
_Row = Sequence[str]


def blocks(report: Report) -> Iterator[str]:
    """Yield the report piece by piece."""
    yield f"## {_MARKS.get(report.verdict, '❌')} grpo-verify: {report.verdict}\n"
    yield f"{prose(shortened(closing_sentence(report)))}\n"
    yield _bullets(f"{name}: {_code(value)}" for name, value in facts(report).items())
    yield _bullets(f"refused {_code(error.code)}: {_code(error.message)}" for error in report.errors)
    yield from _layouts(report)
    yield from _drifts(report)
    yield from _reasons(report)
    yield from _planted(report)
    yield from _cases(report)
    yield from _surroundings(report)


def _layouts(report: Report) -> Iterator[str]:
    seen = layout_map(report.cases)
    if not seen.rows:
        return
    by_batch = any(row.batch for row in seen.rows)
    header = [*(["batch"] if by_batch else []), "layout", *map(_code, seen.quantities)]
    rows = [
        [*([_code(row.batch)] if by_batch else []), str(row.layout), *map(_cell, row.cells)] for row in seen.rows
    ]
    yield "### Layout by quantity\n"
    yield _table(header, rows)
    yield "`=` bitwise equal · `≠` drifting elements of all · `?` could not have shown a difference\n"
    yield _bullets(evidence_lines(report.cases))


def _cell(cell: Cell) -> str:
    if cell.worst:
        return f"**≠** {how_many(cell.worst)}"
    return {"equal": "=", "blind": "?"}.get(cell.state, "")


def _drifts(report: Report) -> Iterator[str]:
    drifting = [case for case in worst_first(report.cases) if case.verdict is Verdict.DRIFT]
    if drifting:
        yield "### Drift\n"
    for case in drifting[:_MAX_DETAILED]:
        yield f"**{_code(label(case))}**{_explained(case)}\n"
        rows = [_quantity_row(quantity) for quantity in case.drifted]
        yield _table(["quantity", "drifted", "max ULP", "max abs", "first", "pattern"], rows)
    if hidden := drifting[_MAX_DETAILED:]:
        yield f"and {plural(len(hidden), 'more drifting case')}; the JSON report holds all of them\n"


def _explained(case: CaseResult) -> str:
    words = filter(None, (case.reason, case.diagnosis.words if case.diagnosis else None))
    return "".join(f"<br>{_code(each)}" for each in words)


def _quantity_row(quantity: QuantityResult) -> _Row:
    first = f"{place(quantity.first)}: {values(quantity.first)}" if quantity.first else ""
    sizes = (how_many(quantity), f"{quantity.max_ulp:,}", f"{quantity.max_abs:.3g}")
    return [_code(quantity.name), *sizes, _code(first), _code(quantity.pattern or "")]


def _reasons(report: Report) -> Iterator[str]:
    """What stopped or was left out, with its reason."""
    ordinary = [case for case in report.cases if not case.expect.is_planted]
    told = [case for case in worst_first(ordinary) if case.verdict not in (Verdict.MATCH, Verdict.DRIFT)]
    lines = []
    for members in group(told, lambda case: (case.verdict, case.reason)).values():
        names = listed(map(title, members))
        reason = members[0].reason or "no reason was given"
        lines.append(f"**{members[0].verdict}** {len(members):,}: {_code(names)}: {_code(reason)}")
    if lines:
        yield "### Stopped or left out\n"
        yield _bullets(lines)
    yield _bullets(f"note: {_code(note)}" for note in report.notes)


def _planted(report: Report) -> Iterator[str]:
    faults = worst_first(planted(report))
    if not faults:
        yield "Planted faults: none in this run\n"
        return
    heading = f"Planted faults: caught {report.planted.caught} of {report.planted.total}"
    rows = [
        [_code(fault_name(case)), str(case.layout), verdict_words(case), _code(shown_by(case))]
        for case in faults[:MAX_ROWS]
    ]
    table = _table(["planted fault", "layout", "verdict", "why"], rows)
    more = f"\nand {len(faults) - MAX_ROWS:,} more\n" if len(faults) > MAX_ROWS else ""
    yield _folded(heading, table + more, is_open=not all(map(is_seen, faults)))


def _cases(report: Report) -> Iterator[str]:
    shown = [case for case in report.cases if not case.expect.is_planted and case.verdict is not Verdict.SKIPPED]
    if shown:
        table = _table(["case", "layout", "batch", "verdict", "equal"], map(_case_row, rows_of(shown)))
        yield _folded(plural(len(shown), "case"), table, is_open=False)


def _case_row(row: CaseRow) -> _Row:
    name = title(row.cases[0]) if len(row.cases) == 1 else f"{len(row.cases):,} cases"
    layout = row.cell("layouts", lambda case: case.layout)
    batch = row.cell("batches", lambda case: case.batch)
    verdict = f"**{row.verdict}**" if is_trouble(row.cases[0]) else str(row.verdict)
    return [_code(name), layout, _code(batch), verdict, row.equal]


def _surroundings(report: Report) -> Iterator[str]:
    if report.environment:
        rows = [[_code(name), _code(_plain(value))] for name, value in report.environment.items()]
        yield _folded("Environment", _table(["", "value"], rows), is_open=False)
    if report.command:
        yield f"{_code(shlex.join(report.command))}\n"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _code(text: str) -> str:
    return for_markdown(shortened(text))


def _bullets(lines: Iterable[str]) -> str:
    found = list(lines)
    more = [f"and {len(found) - MAX_ROWS:,} more"] if len(found) > MAX_ROWS else []
    return "".join(f"- {line}\n" for line in (*found[:MAX_ROWS], *more))


def _table(header: _Row, rows: Iterable[_Row]) -> str:
    lines = (header, ["---"] * len(header), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _folded(summary: str, body: str, *, is_open: bool) -> str:
    return f"<details{' open' if is_open else ''}><summary>{summary}</summary>\n\n{body}\n</details>\n"
