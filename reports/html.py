"""The report as one self-contained page: no script, no network, nothing but the report in it."""

import re
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from operator import attrgetter

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from reports import labels, ranking
from reports.closing import closing_sentence, planted
from reports.contract_table import contract_table
from reports.escaping import one_line
from reports.evidence import evidence_lines
from reports.facts import facts
from reports.grouping import ranges, rows_of
from reports.layout_map import MapRow, layout_map
from reports.model import Report
from reports.page_parts import drift_pages, plain, reasons
from reports.verdicts import Verdict

_MAX_FAULTS = 200


def render_html(report: Report) -> str:
    """Return the page. Two reports that differ in measured times alone differ in its <time> elements alone."""
    ordinary = [case for case in report.cases if not case.expect.is_planted]
    faults = ranking.worst_first(planted(report))
    shown = [case for case in ordinary if case.verdict is not Verdict.SKIPPED]
    return _template().render(
        report=report,
        closing=closing_sentence(report),
        facts=facts(report),
        map=layout_map(report.cases),
        evidence=list(evidence_lines(report.cases)),
        drifts=drift_pages(report.cases),
        reasons=reasons(ordinary),
        faults=faults[:_MAX_FAULTS],
        hidden_faults=max(0, len(faults) - _MAX_FAULTS),
        rows=rows_of(shown),
        contract=contract_table(report.contract),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_clean,
    )
    environment.filters |= {"plain": plain, "breakable": _breakable, "by_batch": _by_batch}
    environment.globals |= {
        "labels": labels,
        "ranking": ranking,
        "ranges": ranges,
        "op_of": attrgetter("op"),
        "layout_of": attrgetter("layout"),
        "batch_of": attrgetter("batch"),
        "seed_of": attrgetter("seed"),
    }
    return environment.get_template("report.html.j2")


def _by_batch(rows: Iterable[MapRow]) -> list[tuple[str, list[MapRow]]]:
    return [(" · ".join(filter(None, names)), list(members)) for names, members in groupby(rows, _heading)]


def _heading(row: MapRow) -> tuple[str, str]:
    return row.op, row.batch


def _breakable(name: str) -> Markup:
    """A long name that may break after an underscore or a dot."""
    return Markup(re.sub("([_.])", r"\1<wbr>", str(escape(one_line(name)))))


def _clean(value: object) -> object:
    """Values may hold characters that are not allowed in HTML, or that turn the reading direction."""
    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value
