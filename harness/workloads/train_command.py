"""The command `train`: its flags, derived from the settings, and its answer. Loads the rest when it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import Group

from harness.settings.config_sources import current_folder, flag_source
from harness.settings.flags import REPORT_FLAGS, REPORT_GROUP, Answer, with_flags_of
from harness.settings.out_folder import check_out
from harness.stdio import is_absent, look_of
from harness.workloads.model_place import check_model
from harness.workloads.train_settings import TrainSettings
from reports import render

OnProgress = Callable[[str], None]
_RUN_FLAGS = ("device", "ranks_per_device", "controls", "timeout")
_TRAINED = Group("What to train", sort_key=0)
_GROUPS = {
    **{name: _TRAINED for name in TrainSettings.model_fields if name not in _RUN_FLAGS},
    **dict.fromkeys(REPORT_FLAGS, REPORT_GROUP),
}


def train_command(command_line: Sequence[str], on_progress: OnProgress) -> Callable[..., Answer]:
    """The command; `command_line` goes into the report."""

    def train(**flags: Any) -> Answer:
        """Train at several DP degrees and prove, update by update, that the parameters are the same bits."""
        return answer(TrainSettings.of(flag_source(flags)), command_line, on_progress)

    return with_flags_of(TrainSettings.model_fields, _GROUPS, train)


def answer(settings: TrainSettings, command_line: Sequence[str], on_progress: OnProgress) -> Answer:
    """Plan, launch and report; the exit status is the report's."""
    current_folder()
    check_out(settings.out, "--out")
    if settings.model is not None:
        check_model(settings.model)
    from harness.workloads.train_plan import plan_training
    from harness.workloads.train_run import run_training

    progress = (lambda line: None) if settings.quiet else on_progress
    report = run_training(plan_training(settings), out=settings.out, on_progress=progress, command=command_line)
    look = look_of(sys.stdout, settings.color)
    text = render(report, settings.format, quiet=settings.quiet, **look)
    return "" if settings.out and is_absent(sys.stdout) else text, report.exit_status
