"""Reading a saved report: every way a file can be no report ends in one error that says what and where."""

import json
from typing import Final, Literal, Never

from pydantic import ValidationError
from pydantic_core import ErrorDetails

SCHEMA_VERSION: Final[Literal[1]] = 1
_SHOWN_PROBLEMS = 5
_SHOWN_CHARS = 60


class ReportFormatError(ValueError):
    """The text is no report of this schema: truncated, foreign, corrupt, or at odds with itself."""

    code = "report-format"


def check_is_report(text: str) -> None:
    """Raise ReportFormatError unless `text` is strict JSON that claims the known schema version."""
    document = _parse(text)
    if not isinstance(document, dict):
        _refuse("the report", "a JSON object", f"a JSON {type(document).__name__}")
    if "schema_version" not in document:
        _refuse("schema_version", str(SCHEMA_VERSION), "no such field; this is no grpo-verify report")
    version = document["schema_version"]
    # True == 1 in Python, and a report that says `true` is foreign.
    if type(version) is not int or version != SCHEMA_VERSION:
        _refuse("schema_version", f"{SCHEMA_VERSION}, the only version known here", _shorten(version))


def explain(error: ValidationError) -> ReportFormatError:
    """Return pydantic's findings as one error: where, expected and got for each of the first few."""
    problems = error.errors(include_url=False, include_context=False)
    lines = [_explain_one(problem) for problem in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > _SHOWN_PROBLEMS:
        lines.append(f"and {len(problems) - _SHOWN_PROBLEMS} more")
    return ReportFormatError("not a valid report: " + "; ".join(lines))


def _explain_one(problem: ErrorDetails) -> str:
    if problem["type"] == "value_error":
        # Raised by the models here: the message already says where, expected and got.
        return f"{_path(problem['loc'])}: {problem['msg'].removeprefix('Value error, ')}"
    return f"{_path(problem['loc'])}: {problem['msg']}, got {_shorten(problem['input'])}"


def _parse(text: str) -> object:
    if not text.strip():
        _refuse("the report", "JSON text", "an empty text")
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_version_alone)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        end = "the end of the text: it is cut off" if error.pos >= len(text.rstrip()) else error.msg
        raise _problem(where, "JSON", end) from error
    except RecursionError as error:
        raise _problem("the report", "a report's few levels", "far deeper nesting") from error
    except ReportFormatError:
        raise
    except ValueError as error:
        raise _problem("the report", "JSON numbers", str(error)) from error


def _version_alone(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object with nothing but its version: of a large report nothing else is needed here."""
    return {name: value for name, value in pairs if name == "schema_version"}


def _refuse_constant(token: str) -> Never:
    _refuse("the report", "strict JSON", f"the token {token}")


def _refuse(where: str, expected: str, got: str) -> Never:
    raise _problem(where, expected, got)


def _problem(where: str, expected: str, got: str) -> ReportFormatError:
    return ReportFormatError(f"not a valid report: {where}: expected {expected}, got {got}")


def _path(loc: tuple[int | str, ...]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return path.removeprefix(".") or "the report"


def _shorten(value: object) -> str:
    if isinstance(value, dict | list):
        return f"a JSON {'object' if isinstance(value, dict) else 'array'} of {len(value)}"
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARS else shown[: _SHOWN_CHARS - 3] + "..."
