"""A run prepared for a user's own torchrun: the plan in a directory, and the command that runs it."""

from __future__ import annotations

import shlex
from pathlib import Path

from grpo_contract import Problem
from harness.files.rundir import RunDir
from harness.planning.layouts import asks_for_degrees
from harness.planning.planned import Plan
from harness.planning.unused_flags import not_for
from harness.provenance.identity import write_identity
from harness.runs.resume import prepare, request_for
from harness.settings.devices import Machine, this_machine
from harness.settings.layout_text import MOST_RANKS
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig


def prepare_nodes(config: RunConfig) -> str:
    """Prepare the folder of --out and say how to run what is in it.

    The machines that will run it are not this one: its devices are not counted, so degrees must be given.
    Raises RequestError without --out or degrees, RunDirError when the folder holds anything.
    """
    problems = []
    if config.out is None:
        problems.append(Problem("request.out", "--out", "a folder for the plan", "none"))
    if config.resume is None and not asks_for_degrees(config):
        problems.append(Problem("request.layouts", "--layouts, --tp or --dp", "the degrees to run", "none"))
    if config.virtual:
        problems.append(
            Problem("request.virtual", "--virtual", "ranks of their own for torchrun", "virtual ranks")
        )
    if config.dry_run:
        expected = "nothing beside plan, which writes (grpo-verify --dry-run prints one)"
        problems.append(Problem("request.dry_run", config.where("dry_run"), expected, "true"))
    if problems or config.out is None:
        raise RequestError(problems)
    plan, earlier, _ = request_for(config, elsewhere(config))
    rundir = RunDir.claim(config.out)
    todo = plan if earlier is None else prepare(rundir, earlier, plan)
    rundir.write_plan(todo.model_dump_json())
    write_identity(rundir, plan)
    unused = not_for(config, ("format", "quiet", "color"), "plan, which prints this text")
    return _words(plan, rundir.path) + "".join(f"\nnote: {note}\n" for note in unused)


def elsewhere(config: RunConfig) -> Machine:
    """A machine with room for any layout, on the device that was asked for or else that this machine has."""
    here = this_machine()
    has_cuda = config.device == "cuda" or (config.device == "auto" and here.cuda_devices > 0)
    return Machine(MOST_RANKS, MOST_RANKS if has_cuda else 0, has_cuda, is_here=False)


def _words(plan: Plan, path: Path) -> str:
    count = sum(case.skip is None for case in plan.cases)
    return f"""{count} cases for {plan.ranks} ranks on {plan.device}, prepared in {path}.
On every node, where NODES x RANKS is at least {plan.ranks}:

  PYTHONSAFEPATH=1 torchrun --nnodes NODES --nproc-per-node RANKS --max-restarts 0 \\
    --rdzv-backend c10d --rdzv-endpoint FIRST_NODE:29400 --rdzv-id {path.name} \\
    -m harness.worker {shlex.quote(str(path))}

The folder must be there on every node; where nodes share none, copy its plan.json and name that instead.
Rank 0 writes the report into it: grpo-verify show {shlex.quote(str(path))}
"""
