"""The command `train`: its flags, derived from the settings, and its answer. Loads the rest when it runs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from harness.flags import Answer
from harness.run_config import RequestError, flag_name
from harness.stdio import look_of
from harness.workloads.train_settings import TrainSettings
from reports import render

OnProgress = Callable[[str], None]
_SPELLINGS = {"json": ("format", "json"), "no_controls": ("controls", "off")}


def train_command(command_line: Sequence[str], on_progress: OnProgress) -> Callable[..., Answer]:
    """The command; `command_line` goes into the report."""

    def train(**flags: Any) -> Answer:
        """Train at several DP degrees and prove, update by update, that the parameters are the same bits."""
        return answer(TrainSettings.of_flags(_spelled(flags)), command_line, on_progress)

    keyword = inspect.Parameter.KEYWORD_ONLY
    hints = {name: _hint(name, field.annotation, field.description, field.default)
             for name, field in TrainSettings.model_fields.items()}  # fmt: skip
    hints |= {name: _spelling(name, *target) for name, target in _SPELLINGS.items()}
    parameters = [inspect.Parameter(name, keyword, default=None, annotation=hints[name]) for name in hints]
    train.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    train.__annotations__ = hints
    return train


def answer(settings: TrainSettings, command_line: Sequence[str], on_progress: OnProgress) -> Answer:
    """Plan, launch and report; the exit status is the report's."""
    from harness.workloads.train_plan import plan_training
    from harness.workloads.train_run import run_training

    progress = (lambda line: None) if settings.quiet else on_progress
    report = run_training(plan_training(settings), out=settings.out, on_progress=progress, command=command_line)
    look = look_of(sys.stdout, settings.color)
    return render(report, settings.format, quiet=settings.quiet, **look), report.exit_status


def _spelled(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags that are another spelling of a value, as that value."""
    found = {name: value for name, value in flags.items() if value is not None and name not in _SPELLINGS}
    for name, (target, value) in _SPELLINGS.items():
        if flags.get(name):
            if found.get(target, value) != value:
                raise RequestError(
                    f"invalid request: {flag_name(name)}: expected it or {flag_name(target)}, got both"
                )
            found[target] = value
    return found


def _hint(name: str, annotation: Any, about: str | None, default: Any) -> Any:
    kind = bool | None if annotation is bool else str | None
    shown = "" if default is None or default is False else f" [default: {default}]"
    negative: Any = () if annotation is bool else None
    return Annotated[
        kind, Parameter(name=flag_name(name), help=f"{about}{shown}", negative=negative, show_default=False)
    ]


def _spelling(name: str, target: str, value: str) -> Any:
    about = f"the same as {flag_name(target)} {value}"
    return Annotated[bool | None, Parameter(name=flag_name(name), help=about, negative=(), show_default=False)]
