"""Problems of a configuration: what pydantic and the contract find, told at the place the user wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from grpo_contract import AdvantageSpec, ObjectiveSpec, Problem, ReductionSpec

_SETTINGS = {
    "token_normalizer": "normalizer",
    "kl_estimator": "kl",
    "kind": "advantage",
    "num_vocab_tiles": "tiles",
}
_EXPECTED = {
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "int_type": "an integer",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "string_too_short": "text that is not empty",
    "too_short": "at least one value",
    "tuple_type": "a list",
    "path_type": "a path",
    "greater_than_equal": "at least {ge}",
    "greater_than": "a number above {gt}",
    "less_than_equal": "at most {le}",
    "extra_forbidden": "no such setting",
}


def suggestion(name: str, known: list[str]) -> str:
    """A hint in brackets when `name` is close to a known one; otherwise nothing."""
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def from_pydantic(error: ValidationError, places: Mapping[str, str]) -> list[Problem]:
    """Every finding of pydantic, at the place each value came from."""
    found = []
    for item in error.errors(include_url=False):
        name = str(item["loc"][0])
        got = _shown(item["input"])
        found.append(Problem(f"request.{name}", places.get(name, name), _expected(dict(item)), got))
    return found


def contract_problems(fields: Mapping[str, Any], where: Callable[[str], str]) -> list[Problem]:
    """What the objective and the reduction say to the given contract fields, whatever the batch."""
    reduction = {name: value for name, value in fields.items() if name in ReductionSpec.model_fields}
    advantage = {name: value for name, value in fields.items() if name in AdvantageSpec.model_fields}
    objective = {name: value for name, value in fields.items() if name in ObjectiveSpec.model_fields}
    if "advantage" in objective:
        advantage["kind"] = objective["advantage"]
    objective["advantage"] = advantage
    found = [*ReductionSpec.problems(reduction), *ObjectiveSpec.problems(objective)]
    return [relocated(problem, where) for problem in found]


def relocated(problem: Problem, where: Callable[[str], str]) -> Problem:
    """The problem at the place of the setting behind its contract field."""
    field = problem.where.rpartition(".")[2]
    return Problem(problem.code, where(_SETTINGS.get(field, field)), problem.expected, problem.got)


def _expected(item: Mapping[str, Any]) -> str:
    context = item.get("ctx", {})
    if item["type"] in ("literal_error", "enum"):
        return "one of " + str(context["expected"]).replace("'", "").replace(" or ", ", ")
    if item["type"] in _EXPECTED:
        return _EXPECTED[item["type"]].format(**context)
    return str(item["msg"]).removeprefix("Value error, ")


def _shown(value: object) -> str:
    if isinstance(value, str) and not value.isprintable():
        return repr(os.fsencode(value))[1:] if _is_bytes(value) else repr(value)
    return value if isinstance(value, str) and value.strip() else repr(value)


def _is_bytes(text: str) -> bool:
    """Whether the system handed over bytes that are not UTF-8, which Python keeps as lone surrogates."""
    return any("\udc80" <= letter <= "\udcff" for letter in text)
