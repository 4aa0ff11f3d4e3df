"""A rank. Imports neither renderers, nor rich, nor the command line; torch only once its status is written."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

Body = Callable[[object, int, int, object], None]
"""What a rank does: run directory, rank, local rank, status writer."""


def main(arguments: list[str], body: Body | None = None) -> int:
    """Run the plan of the run directory `arguments[0]` as rank RANK of WORLD_SIZE; another `body` runs another."""
    # Importing torch makes many objects that live for ever; collecting among them costs a quarter of start-up.
    gc.disable()
    from harness.files.rundir import RunDir
    from harness.launching.launch_request import append_user_path
    from harness.launching.op_exits import exits_told
    from harness.launching.stacks import install_stack_dump
    from harness.launching.status import Phase, StatusWriter
    from harness.system.guard import has_launcher, install_parent_guard

    install_parent_guard()
    if refusal := _why_not_started(arguments):
        print(f"grpo-verify: {refusal}", file=sys.stderr)
        return 2
    rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    if body is None and not has_launcher():
        from harness.runs.nodes import run_node

        gc.enable()
        return run_node(Path(arguments[0]), rank, local_rank)
    rundir = RunDir.open(Path(arguments[0]))
    status = StatusWriter(rundir, rank)
    install_stack_dump(rundir, rank)
    append_user_path()
    try:
        with exits_told(status):
            (body or _run)(rundir, rank, local_rank, status)
    except Exception as error:
        status.fail(error)
        traceback.print_exception(error)  # into this rank's log, which the report points to
        return 1
    status.update(phase=Phase.DONE)
    return 0


def _why_not_started(arguments: list[str]) -> str | None:
    """What is missing of what torchrun and its user must give."""
    if not arguments:
        return "harness.worker: expected a folder prepared by grpo-verify plan, or its plan.json, got no argument"
    if missing := [name for name in ("RANK", "WORLD_SIZE") if not os.environ.get(name, "").isdigit()]:
        return f"harness.worker: expected to be started by torchrun, got no {' and no '.join(missing)}"
    return None


def _run(rundir: object, rank: int, local_rank: int, status: object) -> None:
    import torch

    from harness.files.rundir import RunDir
    from harness.launching.status import StatusWriter
    from harness.planning.planned import Plan
    from harness.ranks.rank_run import RankRun

    assert isinstance(rundir, RunDir)
    assert isinstance(status, StatusWriter)
    gc.freeze()
    gc.enable()
    torch.set_num_threads(1)
    plan = Plan.model_validate_json(rundir.plan.read_text())
    kind: type[RankRun] = RankRun
    if plan.transport == "virtual":
        from harness.ranks.virtual_rank_run import VirtualRankRun as kind
    kind(plan, rundir, rank, local_rank, status).run()


def leave(status: int) -> NoReturn:
    """End at once: all that counts is written, and taking torch apart costs every rank half a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
