"""A run under a user's own torchrun, on one node or on several: no launcher, so rank 0 makes the report.

The report lies in the run directory from the first moment on and is renewed with every case, so that whatever
ends the job, what was finished is kept and marked. Ranks that fail leave their last word in torch's store, as
JSON, where rank 0 finds it whatever the node; a directory that all nodes share is not needed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from grpo_contract import GRPOVerifyError, Problem
from harness.files.report_file import keep
from harness.files.rundir import RunDir, RunDirError, read_text
from harness.launching.blame import Culprit
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from harness.launching.op_exits import exits_told
from harness.launching.stacks import install_stack_dump
from harness.launching.status import Phase, StatusWriter
from harness.planning.planned import Plan
from harness.runs.node_blame import Terminated, last_words, outcome_of
from harness.runs.resume import KEPT
from harness.runs.run_report import make_report
from harness.settings.out_folder import REPORT
from reports import CaseResult, Report

REFUSED = 2
TORCHRUNS = (signal.SIGTERM, signal.SIGHUP)
"""Signals by which torchrun ends its ranks."""
# A rank that leaves makes torchrun end the others: the one that says why must come first.
SILENT_SECONDS = 1.0
UNFINISHED = "the run has not come to its end: it is still at work, or rank 0 was ended before it could say why"


@dataclass(frozen=True)
class NodeRun(RunDir):
    """The run directory of a rank without a launcher; rank 0 renews the report with every case."""

    report: Path

    def write_case(self, index: int, text: str) -> None:
        """Store the result of case `index`, and a report that holds it."""
        super().write_case(index, text)
        write_report(self, LaunchOutcome(OutcomeKind.RANK_DIED, 0.0, Culprit((), UNFINISHED)))


def run_node(place: Path, rank: int, local_rank: int) -> int:
    """Run the plan in `place`, a prepared directory or a plan file; the rank's exit status.

    Rank 0's is the report's own; torchrun makes 1 of anything but 0. Without a shared directory the report
    lies beside the plan file, on the node of rank 0. Where there is no plan one rank of each node says so.
    """
    started = time.perf_counter()
    try:
        rundir = _rundir(place)
        plan = _plan(rundir, place)
    except (RunDirError, OSError) as error:
        if local_rank == 0:
            print(f"grpo-verify: {error}", file=sys.stderr)
        else:
            time.sleep(SILENT_SECONDS)
        return REFUSED
    status = StatusWriter(rundir, rank)
    install_stack_dump(rundir, rank)
    if rank == 0:
        _outlive_signals()
    try:
        _check_fresh(rundir, plan)
        _check_world(plan)
        with exits_told(status):
            _run(plan, rundir, rank, local_rank, status)
    except Exception as error:
        status.fail(error)
        traceback.print_exc()
        return _failed(rundir, rank, started)
    status.update(phase=Phase.DONE)
    if rank != 0:
        return 0
    return _told(write_report(rundir, LaunchOutcome(OutcomeKind.FINISHED, time.perf_counter() - started)), rundir)


def write_report(rundir: NodeRun, outcome: LaunchOutcome) -> Report:
    """The report of the cases in `rundir`, written to its place."""
    plan = Plan.model_validate_json(rundir.plan.read_text())
    texts = ((index, read_text(rundir.case(index))) for index in rundir.case_indices())
    finished = {index: CaseResult.model_validate_json(text) for index, text in texts if text is not None}
    command = ("torchrun", "-m", "harness.worker", *sys.argv[1:])
    return keep(make_report(plan, finished, outcome, rundir, command, outcome.seconds), rundir.report)


def _rundir(place: Path) -> NodeRun:
    """Beside the plan that was given lies the report: in the directory itself, or in the plan file's."""
    if place.is_dir():
        path = RunDir.open(place).path
        return NodeRun(path, path / REPORT)
    text = read_text(place)
    if text is None:
        raise RunDirError(Problem("run_dir.plan", str(place), "a prepared directory or a plan file", "nothing"))
    own = RunDir.create()
    own.write_plan(text)
    return NodeRun(own.path, place.resolve().with_name(REPORT))


def _plan(rundir: NodeRun, place: Path) -> Plan:
    """The plan in `rundir`, which was made for `place`."""
    path = rundir.plan if place.is_dir() else place
    return _parsed(read_text(rundir.plan) or "", path)


def _parsed(text: str, path: Path) -> Plan:
    try:
        return Plan.model_validate_json(text)
    except ValidationError as error:
        damaged = error.errors()[0]["type"] == "json_invalid"
        got = "a damaged file" if damaged else f"another ({error.error_count()} fields do not fit)"
        raise RunDirError(Problem("run_dir.plan", str(path), "a plan of this version", got)) from None


def _run(plan: Plan, rundir: NodeRun, rank: int, local_rank: int, status: StatusWriter) -> None:
    import torch

    from harness.ranks.rank_run import RankRun

    torch.set_num_threads(1)
    RankRun(plan, rundir, rank, local_rank, status).run()


def _failed(rundir: NodeRun, rank: int, started: float) -> int:
    if rank == 0:
        _hear_no_more()
    world = int(os.environ["WORLD_SIZE"])
    words = last_words(rundir, rank, world)
    if rank != 0:
        return 1
    return _told(write_report(rundir, outcome_of(words, world, time.perf_counter() - started)), rundir)


def _told(report: Report, rundir: NodeRun) -> int:
    print(f"grpo-verify: {report.verdict} (exit {report.exit_status}); grpo-verify show {rundir.report}")
    return report.exit_status


def _outlive_signals() -> None:
    """Rank 0 has a report to write; torchrun, handing on what ends it, leaves it half a minute for that."""
    if threading.current_thread() is not threading.main_thread():
        return

    def end(number: int, _frame: FrameType | None) -> None:
        _hear_no_more()
        raise Terminated(signal.Signals(number).name)

    for each in TORCHRUNS:
        signal.signal(each, end)


def _hear_no_more() -> None:
    for each in TORCHRUNS:
        signal.signal(each, signal.SIG_IGN)


def _check_fresh(rundir: NodeRun, plan: Plan) -> None:
    """Results of an earlier run must not pass for this one's; torchrun's own restart may leave some."""
    stale = [index for index in rundir.case_indices() if plan.cases[index].skip != KEPT]
    if stale and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
        got = f"results of {len(stale)} cases of an earlier run (prepare another directory)"
        raise GRPOVerifyError(Problem("error.run_dir", str(rundir.path), "a directory without results", got))


def _check_world(plan: Plan) -> None:
    world = int(os.environ["WORLD_SIZE"])
    if world < plan.ranks:
        got = f"{world} (nodes times --nproc-per-node)"
        raise GRPOVerifyError(Problem("error.world", "ranks started by torchrun", f"at least {plan.ranks}", got))
