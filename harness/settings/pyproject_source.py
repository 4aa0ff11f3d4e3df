"""Settings in the [tool.grpo-verify] table of a pyproject.toml."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from grpo_contract import Problem
from harness.settings.config_problems import suggestion
from harness.settings.run_config import RunConfig
from harness.settings.setting_names import SPELLINGS, flag_name
from harness.settings.source import Source
from harness.system.regular_file import read_regular

TABLE = "tool.grpo-verify"
MISTAKEN_TABLE = "grpo_verify"


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
