"""Settings in GRPO_VERIFY_* variables."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_contract import Problem
from harness.settings.config_problems import suggestion
from harness.settings.run_config import RunConfig
from harness.settings.setting_names import PREFIX, SPELLINGS, variable_name
from harness.settings.source import Source
from harness.system.guard import AGENT_PID, LAUNCHER_PID
from harness.system.processes import MARK

OF_THE_LAUNCHER = (AGENT_PID, LAUNCHER_PID, MARK, "GRPO_VERIFY_USER_PATH", "GRPO_VERIFY_CAPTURES")
"""Variables that are no settings: what the launcher tells its ranks, and where our tests find captures."""


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


def _unknown(variable: str, known: list[str]) -> Problem:
    short = [name.removeprefix(PREFIX) for name in known]
    hint = suggestion(variable.removeprefix(PREFIX), short).replace("mean ", f"mean {PREFIX}")
    hint = hint or " (grpo-verify config lists the settings)"
    return Problem("request.variable", variable, f"a known variable{hint}", "an unknown one")
