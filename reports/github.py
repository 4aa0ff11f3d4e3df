"""The report for GitHub Actions: one text, a step summary when appended to its file, annotations when printed.

The runner obeys each line of a step's output that starts with `::`, wherever it stands; Markdown hides what
stands in a comment. So the annotations open the text as a comment: `tee -a "$GITHUB_STEP_SUMMARY"` serves both.
"""

from collections.abc import Iterator

from reports.cases import CaseResult
from reports.closing import closing_sentence
from reports.escaping import for_command, for_command_property, one_line
from reports.labels import drifted, label, place, shortened
from reports.markdown import fitted
from reports.markdown_blocks import blocks
from reports.model import Report
from reports.ranking import is_trouble, worst_first
from reports.verdicts import ReportVerdict

MOST_BYTES = 1_000_000
"""GitHub refuses a step summary above 1 MiB (1,048,576 bytes)."""

MOST_ANNOTATIONS = 10
"""GitHub shows no more of one kind for a step."""

_MESSAGE_CHARS = 1000
_TITLE_CHARS = 200


def render_github(report: Report) -> str:
    """Return the step summary, opened by at most ten workflow commands, worst first."""
    commands = list(annotations(report))
    hidden = ["\n".join(["<!--", *commands, "-->\n"])] if commands else []
    return fitted([*hidden, *blocks(report)], MOST_BYTES)


def annotations(report: Report) -> Iterator[str]:
    """Yield the workflow commands: the verdict, then one for each problem, refused request or case."""
    if report.verdict is ReportVerdict.MATCH:
        return
    level = "warning" if report.verdict is ReportVerdict.INCONCLUSIVE else "error"
    yield _command(level, f"grpo-verify: {report.verdict}", closing_sentence(report))
    problems = [(f"refused: {error.code}", error.message) for error in report.errors]
    problems += [
        (f"{case.verdict}: {label(case)}", _message(case))
        for case in worst_first(report.cases)
        if is_trouble(case)
    ]
    for title, message in problems[: MOST_ANNOTATIONS - 1]:
        yield _command(level, title, message)


def _message(case: CaseResult) -> str:
    words = [case.reason, case.diagnosis.words if case.diagnosis else None]
    for quantity in case.drifted[:1]:
        first = f"; first: {place(quantity.first)}" if quantity.first else ""
        words.append(f"{quantity.name}: {drifted(quantity)}{first}")
    return "; ".join(filter(None, words)) or "no reason was given"


def _command(level: str, title: str, message: str) -> str:
    head, body = _inert(title, _TITLE_CHARS), _inert(message, _MESSAGE_CHARS)
    return f"::{level} title={for_command_property(head)}::{for_command(body)}"


def _inert(text: str, limit: int) -> str:
    # Nothing may end the comment that hides the commands from Markdown: neither --> nor --!>.
    return shortened(one_line(text), limit).replace("--", "-\u2060-").replace("->", "-\u2060>")
