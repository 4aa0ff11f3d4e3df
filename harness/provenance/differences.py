"""Two nested records compared field by field, as problems that name the field and both values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_contract import Problem
from grpo_contract.fingerprint import flatten

MOST_SHOWN = 6
_LONGEST = 72


def differences(code: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[Problem]:
    """One problem for each field in which `theirs` is not what `mine`, the interrupted run's, was."""
    one, other = flatten(mine), flatten(theirs)
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            expected = f"{_brief(one.get(name))}, as in the interrupted run"
            yield Problem(code, name, expected, _brief(other.get(name)))


def shown(problems: Sequence[Problem]) -> list[Problem]:
    """The first few of many, and how many more there are."""
    rest = len(problems) - MOST_SHOWN
    if rest <= 0:
        return list(problems)
    more = Problem(problems[0].code, "and further fields", "no difference", f"{rest} more")
    return [*problems[:MOST_SHOWN], more]


def _brief(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
