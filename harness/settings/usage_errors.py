"""Mistakes on the command line, told in the words of every other refused request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from grpo_contract import Problem
from harness.settings.config_problems import suggestion
from harness.settings.request_error import RequestError

_TYPES = {int: "an integer", float: "a number", bool: "true or false"}


def usage_error(error: CycloptsError, app: App) -> RequestError:
    """The refusal behind what cyclopts found."""
    if isinstance(error, UnknownOptionError):
        return _refusal(*_unknown_flag(error))
    if isinstance(error, UnusedCliTokensError):
        return _refusal(*_unexpected(error.unused_tokens or [""], _commands(app)))
    if isinstance(error, RepeatArgumentError):
        return _refusal(str(error.token.keyword), "one value", "the flag more than once")
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.keyword or error.argument.name
        expected, got = _missing_value(name, error.root_input_tokens or ())
        return _refusal(name if name.startswith("-") else name.upper(), expected, got)
    if isinstance(error, CoercionError) and error.token is not None:
        kinds = [each for each in get_args(error.target_type) if each in _TYPES] or [error.target_type]
        expected = _TYPES.get(kinds[0] or str, "another value")
        return _refusal(str(error.token.keyword), expected, repr(error.token.value))
    error.verbose = False
    return RequestError(f"{RequestError.title}: {error}")


def _missing_value(flag: str, tokens: Sequence[str]) -> tuple[str, str]:
    """A value that begins with a hyphen reads as a flag; after an equals sign it does not."""
    follows = [value for given, value in pairwise(tokens) if given == flag and value.startswith("-")]
    if not follows or follows[0].startswith("--"):
        return "a value", "nothing"
    return f"a value (one that begins with a hyphen is given as {flag}={follows[0]})", follows[0]


def _unknown_flag(error: UnknownOptionError) -> tuple[str, str, str]:
    flag = (error.token.keyword or error.token.value).partition("=")[0]
    known = [name for argument in error.argument_collection for name in argument.names if argument.parse]
    return flag, f"a known flag{suggestion(flag, known) or ' (--help lists them)'}", "an unknown one"


def _unexpected(tokens: Sequence[str], commands: list[str]) -> tuple[str, str, str]:
    expected = f"a command ({', '.join(commands)}) or a flag{suggestion(tokens[0], commands)}"
    return "command line", expected, repr(tokens[0])


def _commands(app: App) -> list[str]:
    return [name for name in app if not name.startswith("-")]


def _refusal(where: str, expected: str, got: str) -> RequestError:
    return RequestError(Problem("request.usage", where, expected, got))
