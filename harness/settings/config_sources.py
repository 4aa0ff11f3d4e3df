"""Where a configuration comes from: flags over environment over pyproject.toml over defaults."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_contract import Problem
from harness.settings.environment_source import environment_source
from harness.settings.pyproject_source import pyproject_source
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig
from harness.settings.setting_names import SPELLINGS, flag_name
from harness.settings.source import Source

REPLACES = {
    "layouts": ("tp", "dp"),
    "tp": ("layouts",),
    "dp": ("layouts",),
    "normalizer": ("fixed_constant", "alpha", "sequence_denominator"),
}
"""A setting that is given makes these settings of weaker sources meaningless."""


def load_config(
    flags: Mapping[str, Any], environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> RunConfig:
    """The effective configuration. Raises one RequestError with the problems of all sources."""
    sources = gather(flags, environ, folder)
    values, places = merge(sources)
    problems = [problem for source in sources for problem in source.problems]
    try:
        config = RunConfig(origins=places, standing=merge(sources[:-1])[0], **values)
    except RequestError as error:
        raise RequestError([*problems, *error.problems]) from None
    if problems:
        raise RequestError(problems)
    return config


def gather(
    flags: Mapping[str, Any], environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> tuple[Source, ...]:
    """The sources, weakest first."""
    variables = os.environ if environ is None else environ
    try:
        file = pyproject_source(folder or current_folder())
    except RequestError as error:
        file = Source(problems=[*error.problems])
    return file, environment_source(variables), flag_source(flags)


def current_folder() -> Path:
    """The folder that the command stands in. Raises RequestError when it was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        got = error.strerror or str(error)
        raise RequestError(Problem("request.folder", "current folder", "a folder that is there", got)) from None


def merge(sources: Iterable[Source]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and their places; a later source wins."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for source in sources:
        for name in source.values:
            for weaker in REPLACES.get(name, ()):
                values.pop(weaker, None)
                places.pop(weaker, None)
        values |= source.values
        places |= source.places
    return values, places


def flag_source(flags: Mapping[str, Any]) -> Source:
    """Settings given on the command line; None and nothing mean that a flag was absent."""
    source = Source()
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    for name in sorted(given, key=SPELLINGS.__contains__):
        source.put(name, given[name], flag_name(name))
    return source
