"""The one sentence a report ends with: the verdict in words that need no manual."""

from collections.abc import Callable

from reports.cases import CaseResult
from reports.grouping import plural
from reports.model import Report
from reports.verdicts import Expect, ReportVerdict, Verdict, is_seen


def closing_sentence(report: Report) -> str:
    """Return the closing sentence; it starts with the verdict in capitals and ends with the exit status."""
    body = _BODIES[report.verdict](report)
    return f"{report.verdict.upper()}: {body} (exit {report.exit_status})."


def expected(report: Report, verdict: Verdict) -> list[CaseResult]:
    """Return the ordinary cases, those that had to match, with this verdict."""
    return [case for case in report.cases if case.expect is Expect.MATCH and case.verdict is verdict]


def planted(report: Report, *verdicts: Verdict) -> list[CaseResult]:
    """Return the planted faults with one of these verdicts; all of them when none is named."""
    return [case for case in report.cases if case.expect.is_planted and case.verdict in (verdicts or Verdict)]


def _match(report: Report) -> str:
    return f"{_matched_layouts(report)}, and {_planted_words(report)}"


def _matched_layouts(report: Report) -> str:
    matched = expected(report, Verdict.MATCH)
    layouts = {case.layout for case in matched}
    skipped = {case.layout for case in expected(report, Verdict.SKIPPED)} - layouts
    same = f"the same bits as {report.baseline} in {_quantity_words(matched)}"
    if skipped:
        total = plural(len(layouts | skipped), "layout")
        gives = "gives" if len(layouts) == 1 else "give"
        return f"{len(layouts)} of {total} {gives} {same} ({len(skipped)} skipped)"
    if len(layouts) == 1:
        return f"layout {layouts.pop()} gives {same}"
    return f"every one of {len(layouts)} layouts gives {same}"


def _quantity_words(matched: list[CaseResult]) -> str:
    counts = {sum(quantity.is_evidence for quantity in case.quantities) for case in matched}
    fewest = "" if len(counts) == 1 else f"{min(counts)} to "
    unproven = dict.fromkeys(each.name for case in matched for each in case.quantities if not each.is_evidence)
    if not unproven:
        return fewest + plural(max(counts), "quantity", "quantities")
    compared = max(len(case.quantities) for case in matched)
    where = "" if len(counts) == 1 else " in every case"
    return f"{fewest}{max(counts)} of {compared} quantities (not proven{where}: {', '.join(unproven)})"


def _planted_words(report: Report) -> str:
    caught, total = report.planted.caught, report.planted.total
    if total == 0:
        return "no planted fault was in this run, so it does not show that a difference would be seen"
    if caught == 0:
        return f"none of {plural(total, 'planted fault')} could run"
    skipped = total - caught
    if skipped:
        was = "was" if caught == 1 else "were"
        return f"{caught} of {total} planted faults {was} caught ({skipped} skipped)"
    return "the 1 planted fault was caught" if total == 1 else f"all {total} planted faults were caught"


def _inconclusive(report: Report) -> str:
    matched, unproven = expected(report, Verdict.MATCH), expected(report, Verdict.INCONCLUSIVE)
    blind = planted(report, Verdict.INCONCLUSIVE)
    if matched and blind:
        faults = plural(len(blind), "planted fault")
        return f"the layouts that ran agree, but {faults} could not have shown, so nothing is proven"
    if matched:
        return f"{plural(len(unproven), 'case')} could not have shown a difference, so nothing is proven"
    skipped = expected(report, Verdict.SKIPPED)
    counts = f"{len(unproven):,} could not have shown a difference, {len(skipped):,} skipped"
    return f"nothing is proven, because no layout was shown to match: {counts}"


def _missed(report: Report) -> str:
    missed = planted(report, Verdict.MISSED)
    was = "was" if len(missed) == 1 else "were"
    total = plural(report.planted.total, "planted fault")
    return f"{len(missed)} of {total} {was} not seen, so the matches of this run prove nothing"


def _drift(report: Report) -> str:
    drifting = expected(report, Verdict.DRIFT)
    compared = len(drifting) + len(expected(report, Verdict.MATCH))
    give = "gives" if len(drifting) == 1 else "give"
    first = drifting[0]
    names = [quantity.name for quantity in first.drifted]
    where = f"the first is layout {first.layout}" + (f" in {names[0]}" if names else "")
    return f"{len(drifting)} of {plural(compared, 'case')} {give} other bits than {report.baseline}; {where}"


def _refused(report: Report) -> str:
    if report.errors:
        problems = plural(len(report.errors), "problem")
        return f"{problems} in the request, stated above, must be mended before anything can be compared"
    refused = [case for case in report.cases if case.verdict is Verdict.REFUSED and not is_seen(case)]
    return f"{plural(len(refused), 'case')} stopped before any comparison, for the reasons above"


def _failed(report: Report) -> str:
    blame = f": {report.culprit}" if report.culprit else ""
    return f"the run broke before it could finish{blame}"


def _interrupted(report: Report) -> str:
    cause = {143: "SIGTERM", 129: "SIGHUP"}.get(report.exit_status, "SIGINT")
    finished = [case for case in report.cases if case.verdict is not Verdict.SKIPPED]
    return f"stopped by {cause} after {plural(len(finished), 'case')}, so this report is not complete"


_BODIES: dict[ReportVerdict, Callable[[Report], str]] = {
    ReportVerdict.MATCH: _match,
    ReportVerdict.INCONCLUSIVE: _inconclusive,
    ReportVerdict.MISSED: _missed,
    ReportVerdict.DRIFT: _drift,
    ReportVerdict.REFUSED: _refused,
    ReportVerdict.FAILED: _failed,
    ReportVerdict.INTERRUPTED: _interrupted,
}
