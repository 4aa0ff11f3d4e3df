"""A report as JSON text, written case by case: thousands of them never exist as Python dicts at once."""

import json
from collections.abc import Iterable, Iterator, Mapping
from textwrap import indent
from typing import Any

from reports.cases import CaseResult

_EMPTY = '\n  "cases": []'


def report_text(head: Mapping[str, Any], cases: Iterable[CaseResult]) -> str:
    """Return the text that json.dumps gives of `head`, a dumped report without its cases, and `cases`."""
    before, found, after = _dumped(head).partition(_EMPTY)
    assert found  # line breaks inside text are escaped, so the field alone can look like this
    written = ",\n".join(_case_texts(cases))
    return f'{before}\n  "cases": [\n{written}\n  ]{after}\n' if written else f"{before}{found}{after}\n"


def _case_texts(cases: Iterable[CaseResult]) -> Iterator[str]:
    for case in cases:
        yield indent(_dumped(case.model_dump(mode="json")), "    ")


def _dumped(value: object) -> str:
    return json.dumps(value, indent=2, allow_nan=False)
