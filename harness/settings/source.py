"""One place of settings, with where each value was written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from grpo_contract import Problem
from harness.settings.setting_names import SPELLINGS


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
