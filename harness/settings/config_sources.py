"""Where a configuration comes from: flags over environment over pyproject.toml over defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_contract import Problem
from harness.settings.config_problems import suggestion
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig
from harness.settings.setting_names import flag_name
from harness.system.guard import AGENT_PID, LAUNCHER_PID
from harness.system.processes import MARK
from harness.system.regular_file import read_regular

PREFIX = "GRPO_VERIFY_"
TABLE = "tool.grpo-verify"
MISTAKEN_TABLE = "grpo_verify"
OF_THE_LAUNCHER = (AGENT_PID, LAUNCHER_PID, MARK, "GRPO_VERIFY_USER_PATH", "GRPO_VERIFY_CAPTURES")
"""Variables that are no settings: what the launcher tells its ranks, and where our tests find captures."""
SPELLINGS = {"json": ("format", "json"), "no_controls": ("controls", "off")}
"""Flags that are another spelling of a setting's value."""
REPLACES = {
    "layouts": ("tp", "dp"),
    "tp": ("layouts",),
    "dp": ("layouts",),
    "normalizer": ("fixed_constant", "alpha", "sequence_denominator"),
}
"""A setting that is given makes these settings of weaker sources meaningless."""


@dataclass
class Source:
    """One place of settings: the values, where each was written, and what is wrong there."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def put(self, name: str, value: Any, place: str) -> None:
        """Take a setting, an alternative spelling included."""
        if name in SPELLINGS:
            self._spelled(name, value, place)
            return
        self.values[name], self.places[name] = value, place

    def _spelled(self, name: str, value: Any, place: str) -> None:
        target, meaning = SPELLINGS[name]
        if str(value).lower() in ("false", "0"):
            return
        if str(value).lower() not in ("true", "1"):
            self.problems.append(Problem(f"request.{name}", place, "true or false", str(value)))
        elif str(self.values.get(target, meaning)).lower() not in (meaning, "false"):
            expected, got = f"{meaning} or nothing ({place} is given)", str(self.values[target])
            self.problems.append(Problem(f"request.{target}", self.places[target], expected, got))
        else:
            self.values[target], self.places[target] = meaning, place


def load_config(
    flags: Mapping[str, Any], environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> RunConfig:
    """The effective configuration. Raises one RequestError with the problems of all sources."""
    sources = gather(flags, environ, folder)
    values, places = merge(sources)
    problems = [problem for source in sources for problem in source.problems]
    try:
        config = RunConfig(origins=places, **values)
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


def environment_source(environ: Mapping[str, str]) -> Source:
    """Settings in GRPO_VERIFY_* variables. An empty variable counts as unset; an unknown one is a problem."""
    source = Source()
    names = [*RunConfig.model_fields, *SPELLINGS]
    for name in sorted(names, key=SPELLINGS.__contains__):
        if value := environ.get(variable_name(name), ""):
            source.put(name, value, variable_name(name))
    known = [variable_name(name) for name in names]
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and environ[variable] and variable not in (*known, *OF_THE_LAUNCHER):
            source.problems.append(_unknown(variable, known))
    return source


def variable_name(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def _unknown(variable: str, known: list[str]) -> Problem:
    short = [name.removeprefix(PREFIX) for name in known]
    hint = suggestion(variable.removeprefix(PREFIX), short).replace("mean ", f"mean {PREFIX}")
    hint = hint or " (grpo-verify config lists the settings)"
    return Problem("request.variable", variable, f"a known variable{hint}", "an unknown one")


def pyproject_source(folder: Path) -> Source:
    """Settings of the nearest pyproject.toml, in `folder` or above, that has a [tool.grpo-verify] table."""
    for each in (folder, *folder.parents):
        path = each / "pyproject.toml"
        if not os.path.lexists(path):
            continue
        table, problems = _read_table(path)
        if table is not None or problems:
            return _table_source(table or {}, path, folder, problems)
    return Source()


def _read_table(path: Path) -> tuple[dict[str, Any] | None, list[Problem]]:
    try:
        content = tomllib.loads(read_regular(path))
    except (OSError, RecursionError, ValueError) as error:
        got = "arrays or tables nested too deeply" if isinstance(error, RecursionError) else str(error)
        got = getattr(error, "strerror", None) or got
        return None, [Problem("request.pyproject", str(path), "a readable TOML file", got)]
    tools = content.get("tool", {})
    if not isinstance(tools, dict):
        return None, [Problem("request.pyproject", f"{path}:tool", "a table", repr(tools))]
    if MISTAKEN_TABLE in tools:
        where, expected = f"{path}:tool.{MISTAKEN_TABLE}", f"the table [{TABLE}], with a hyphen"
        return None, [Problem("request.pyproject", where, expected, "an underscore")]
    table = tools.get("grpo-verify")
    if table is not None and not isinstance(table, dict):
        return None, [Problem("request.pyproject", f"{path}:{TABLE}", "a table", repr(table))]
    return table, []


def _table_source(table: dict[str, Any], path: Path, folder: Path, problems: list[Problem]) -> Source:
    source = Source(problems=list(problems))
    shown = os.path.relpath(path, folder)
    known = {flag_name(name).removeprefix("--"): name for name in (*RunConfig.model_fields, *SPELLINGS)}
    for key in sorted(table, key=lambda key: key.replace("-", "_") in SPELLINGS):
        place = f"{shown}:{TABLE}.{key}"
        if name := known.get(key.replace("_", "-")):
            source.put(name, _anchored(name, table[key], path.parent, folder), place)
        else:
            hint = suggestion(key, list(known))
            source.problems.append(Problem("request.pyproject", place, f"a known setting{hint}", "an unknown one"))
    return source


def _anchored(name: str, value: Any, home: Path, folder: Path) -> Any:
    """Paths of a file are relative to that file, not to the folder a command happens to run in."""
    if home == folder or name not in ("out", "batch"):
        return value
    if isinstance(value, list):
        return [_anchored(name, each, home, folder) for each in value]
    is_path = isinstance(value, str) and (name == "out" or value.endswith(".safetensors"))
    return str(home / value) if is_path else value
