"""The report as text for a terminal of any width, with or without colour."""

import shlex
from collections.abc import Iterable, Iterator

from rich.console import RenderableType

from reports.case_table import case_table
from reports.cases import CaseResult
from reports.closing import closing_sentence, planted
from reports.drifts import drift_blocks
from reports.evidence import evidence_lines
from reports.facts import facts
from reports.fault_matrix import is_in_matrix, matrix_blocks
from reports.faults import fault_blocks
from reports.grouping import MAX_ROWS, group, listed, plural, rows_of
from reports.ink import STYLES, Ink
from reports.labels import title
from reports.model import Report
from reports.verdicts import ReportVerdict, Verdict, is_seen


def render_terminal(report: Report, *, width: int, color: bool, unicode: bool = True, quiet: bool = False) -> str:
    """Return the report as text: no line is wider than `width` (20 at least), nothing is printed.

    With `quiet` only what went wrong and the closing sentence remain.
    """
    ink = Ink(width, color=color, unicode=unicode)
    return ink.draw(_blocks(report, ink, quiet))


def _blocks(report: Report, ink: Ink, quiet: bool) -> Iterator[RenderableType]:
    if not quiet:
        yield from _header(report, ink)
    for error in report.errors:
        yield ink.line(f"refused [{error.code}]: {error.message}", STYLES[Verdict.REFUSED])
    ordinary = [case for case in report.cases if not case.expect.is_planted and not is_in_matrix(case)]
    shown = [case for case in ordinary if case.verdict is not Verdict.SKIPPED]
    if shown and not quiet:
        yield from ("", case_table(rows_of(shown), ink))
        yield from (ink.line(line, "dim") for line in evidence_lines(report.cases))
    yield from drift_blocks(ordinary, ink)
    yield from _stopped(shown, ink)
    if not quiet or any(not is_seen(case) for case in planted(report)):
        yield from _planted(report, ink)
    if not quiet:
        yield from matrix_blocks(report.cases, ink)
        yield from _skipped(ordinary, ink)
        yield ""
    yield ink.line(closing_sentence(report), f"bold {_closing_color(report)}")


def _header(report: Report, ink: Ink) -> Iterator[RenderableType]:
    said = [f"{name} {value}" for name, value in facts(report).items() if name != "preflight"]
    yield ink.line(" · ".join(["grpo-verify", *said]), "bold")
    if report.command:
        yield ink.line(f"command: {shlex.join(report.command)}", "dim")
    if report.preflight:
        yield ink.line(f"preflight: {report.preflight}")
    yield from _notes(report, ink)


def _notes(report: Report, ink: Ink) -> Iterator[RenderableType]:
    notes = dict.fromkeys((*report.notes, *(note for case in report.cases for note in case.notes)))
    yield from _capped([ink.line(f"note: {note}") for note in notes], "note", ink)


def _capped(lines: list[RenderableType], noun: str, ink: Ink, indent: int = 0) -> Iterator[RenderableType]:
    yield from lines[:MAX_ROWS]
    if len(lines) > MAX_ROWS:
        yield ink.line(f"and {plural(len(lines) - MAX_ROWS, f'more {noun}')}", indent=indent)


def _stopped(shown: Iterable[CaseResult], ink: Ink) -> Iterator[RenderableType]:
    bad = (Verdict.FAILED, Verdict.REFUSED, Verdict.INCONCLUSIVE)
    lines = list(_reason_lines([case for case in shown if case.verdict in bad], ink, indent=0))
    yield from ("", *lines) if lines else ()


def _reason_lines(cases: Iterable[CaseResult], ink: Ink, indent: int) -> Iterator[RenderableType]:
    lines = []
    for members in group(cases, lambda case: (case.verdict, case.reason)).values():
        verdict, reason = members[0].verdict, members[0].reason or "no reason was given"
        count = f" {len(members):,}" if len(members) > 1 else ""
        text = f"{verdict}{count}: {listed(map(title, members))}: {reason}"
        lines.append(ink.line(text, STYLES[verdict], indent))
    yield from _capped(lines, "reason", ink, indent)


def _planted(report: Report, ink: Ink) -> Iterator[RenderableType]:
    faults = planted(report)
    yield ""
    if not faults:
        yield ink.line("planted faults: none in this run", "yellow")
        return
    seen = [case for case in faults if is_seen(case)]
    style = "green" if len(seen) == len(faults) else "yellow"
    yield ink.line(f"planted faults: caught {len(seen)} of {len(faults)}", style)
    if seen:
        yield from fault_blocks(seen, ink)
    yield from _reason_lines([case for case in faults if not is_seen(case)], ink, indent=2)


def _skipped(ordinary: Iterable[CaseResult], ink: Ink) -> Iterator[RenderableType]:
    skipped = [case for case in ordinary if case.verdict is Verdict.SKIPPED]
    if not skipped:
        return
    yield ""
    yield ink.line(f"skipped: {plural(len(skipped), 'case')}", STYLES[Verdict.SKIPPED])
    lines = []
    for members in group(skipped, lambda case: case.reason).values():
        layouts = listed(case.layout for case in members)
        text = f"{members[0].reason}: {plural(len(members), 'case')} (layouts {layouts})"
        lines.append(ink.line(text, indent=2))
    yield from _capped(lines, "reason", ink, indent=2)


def _closing_color(report: Report) -> str:
    calm = {ReportVerdict.MATCH: "green", ReportVerdict.INCONCLUSIVE: "yellow"}
    return calm.get(report.verdict, "red")
