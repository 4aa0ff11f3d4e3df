"""The values that settings may have, told by pydantic and judged in the words of the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.settings.layout_text import MOST_RANKS, layout_of
from harness.settings.sweep_axes import parse as parse_sweep
from reports.formats import RENDERERS

_OP_PATTERN = re.compile(r"[A-Za-z_][\w-]*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
MOST_COUNTED = 1_000_000
"""The bound of every other count, and of a time in seconds: far beyond use, and no overflow anywhere."""


def setting(default: Any, about: str) -> Any:
    """A setting with its default, and what its flag's help says of it."""
    return Field(default=default, description=about)


def _listed(value: object) -> object:
    """Comma-separated text, alone or inside a list, as a tuple without repeats."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    split = [part for each in value for part in (each.split(",") if isinstance(each, str) else [each])]
    return tuple(dict.fromkeys(part.strip() if isinstance(part, str) else part for part in split))


def _many(value: object) -> object:
    """One text or several, commas kept, as a tuple without repeats."""
    return tuple(dict.fromkeys([value] if isinstance(value, str) else value)) if value else ()  # type: ignore[call-overload]


def _sweep(value: str) -> str:
    parse_sweep(value)
    return value


def _one_of(value: object) -> object:
    return ("off", "on")[value] if isinstance(value, bool) else value


def _layout(value: str) -> str:
    layout_of(value)
    return value.lower()


def _op(value: str) -> str:
    if not _OP_PATTERN.fullmatch(value):
        raise ValueError("a registered name, such as grpo_loss, or package.module:attribute")
    return value


def _named(value: object) -> object:
    if value == "":
        raise ValueError("a path")  # it would be taken for the current folder
    return value


def _formats(value: str) -> str:
    names = list(dict.fromkeys(part.strip() for part in value.split(",")))
    if not set(names) <= set(RENDERERS):
        raise ValueError(f"one of {', '.join(RENDERERS)}, or several with commas between them")
    return ",".join(names)


NoBool = BeforeValidator(lambda value: f"{value}".lower() if isinstance(value, bool) else value)
Count = Annotated[int, NoBool, Field(ge=1, le=MOST_COUNTED)]
Degree = Annotated[int, NoBool, Field(ge=1, le=MOST_RANKS)]
Number = Annotated[float, NoBool]
Seed = Annotated[int, NoBool, Field(ge=0, le=2**32 - 1)]
Folder = Annotated[Path, BeforeValidator(_named)]
Word = Annotated[str, Field(min_length=1)]
Layout = Annotated[str, AfterValidator(_layout)]
Layouts = Annotated[tuple[Layout, ...], BeforeValidator(_listed)]
Batches = Annotated[tuple[Word, ...], BeforeValidator(_listed), Field(min_length=1)]
Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_listed), Field(min_length=1)]
Sweeps = Annotated[tuple[Annotated[str, AfterValidator(_sweep)], ...], BeforeValidator(_many)]
OpName = Annotated[str, AfterValidator(_op)]
Controls = Annotated[Literal["on", "off", "batch", "matrix"], BeforeValidator(_one_of)]
Seconds = Annotated[Number, Field(gt=0, le=MOST_COUNTED)]
Formats = Annotated[str, AfterValidator(_formats)]
