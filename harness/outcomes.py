"""What is left of a command that came to nothing: a message, a status, and for programs a report."""

from __future__ import annotations

import errno
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from grpo_contract import GRPOVerifyError
from harness.inspection.apart import ChildError, OpFailure
from harness.settings.config_sources import gather, merge
from harness.stdio import is_absent, speak_utf8
from harness.system.full_disk import is_full
from reports import Report, ReportError, ReportFormatError, render
from reports.formats import RENDERERS
from reports.labels import without_middle

OTHER_COMMANDS = ("show", "config", "ops", "plan", "compare")
"""Commands that answer with no report of a run."""


@dataclass(frozen=True)
class Outcome:
    """Text for both streams, and the exit status."""

    status: int
    err: str
    out: str = ""


def outcome_of(error: Exception, command: Sequence[str], *, debug: bool = False) -> Outcome:
    """A refusal for an error of the request, and a broken run for any other; `command` is the command line."""
    if isinstance(error, GRPOVerifyError | ReportFormatError):
        report, err = refused_report(error, command), f"{command[0]}: {without_middle(str(error))}\n"
    elif isinstance(error, OpFailure):
        report = broken_report(str(error), command)
        err = f"{error.traceback if debug else ''}{command[0]}: {without_middle(str(error))}\n"
    else:
        what = _what(error)
        line = f"{what}: {error}".splitlines()[0]
        told = f"{command[0]}: {without_middle(line)}"
        report, err = broken_report(line, command), _internal_text(error, told, debug)
    return Outcome(report.exit_status, err, _answer(report, wanted_format(command[1:])))


def _what(error: Exception) -> str:
    if is_full(error):
        return "no room to write"
    if isinstance(error, OSError) and error.errno == errno.EBADF and is_absent(sys.stdout):
        return "stdout cannot be written"  # help writes by itself
    return f"internal error: {getattr(error, 'kind', type(error).__name__)}"


def refused_report(error: GRPOVerifyError | ReportFormatError, command: Sequence[str]) -> Report:
    """A report with one error for each problem."""
    problems = getattr(error, "problems", ())
    errors = [ReportError(code=problem.code, message=str(problem)) for problem in problems]
    whole = [ReportError(code=error.code, message=str(error))]
    return Report.assemble(errors=errors or whole, command=command)


def broken_report(line: str, command: Sequence[str]) -> Report:
    """A report of nothing but that the run broke, and how."""
    return Report.assemble(broken=True, notes=(line,), command=command)


def wanted_format(tokens: Sequence[str]) -> str:
    """The format of a run's answer, judged even where its flags cannot be parsed."""
    if tokens and tokens[0] in OTHER_COMMANDS:
        return "terminal"
    if "--json" in tokens:
        return "json"
    if tokens and tokens[0] == "reveal":
        return "terminal"
    given = [value for flag, value in pairwise([*tokens, ""]) if flag == "--format"]
    given += [token.removeprefix("--format=") for token in tokens if token.startswith("--format=")]
    chosen = given[0] if given else merge(gather({}))[0].get("format")
    return str(chosen or "terminal").partition(",")[0].strip()


def _answer(report: Report, format: str) -> str:
    """The report for a reader that is a program; on a terminal the message says it all."""
    if format not in RENDERERS or format == "terminal":
        return ""
    speak_utf8(sys.stdout)
    return render(report, format)


def _internal_text(error: Exception, line: str, debug: bool) -> str:
    text = error.traceback if isinstance(error, ChildError) else "".join(traceback.format_exception(error))
    return f"{text}{line}\n" if debug else f"{line} (traceback: {_kept(text)}; --debug shows it here)\n"


def _kept(text: str) -> str:
    """Where `text` was written for later; why not, when that failed too."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="grpo-verify-", suffix=".traceback.txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        return file.name
    except OSError as error:
        return f"not kept, {error.strerror}"
