"""A run under a user's own torchrun, on one node or on several: no launcher, so rank 0 makes the report.

The report lies in the run directory from the first moment on and is renewed with every case, so that whatever
ends the job, what was finished is kept and marked. Ranks that fail leave their last word in torch's store, as
JSON, where rank 0 finds it whatever the node; a directory that all nodes share is not needed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

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
from harness.provenance.identity import Identity
from harness.runs.node_blame import deaths_among, last_words, outcome_of
from harness.runs.node_claim import staleness
from harness.runs.node_identity import changed_since, identity_fields
from harness.runs.node_meeting import Presence, StaleFolderError, agreed_exit, meet
from harness.runs.node_signals import Terminated, hear, hear_no_more
from harness.runs.run_report import make_report
from harness.settings.out_folder import REPORT
from reports import CaseResult, Report

REFUSED = 2
COMPLETE = (0, 1, 2, 3)
"""Statuses of a report that is whole, wherever its parts were kept."""
# How long a rank without a plan, and so without a timeout, waits for the others.
MEETING_SECONDS = 60.0
# How long rank 0 may take to come out of a collective, of the half minute that torchrun leaves it.
GRACE_SECONDS = 5.0
UNFINISHED = "the run has not come to its end: it is still at work, or rank 0 was ended before it could say why"


@dataclass(frozen=True)
class NodeRun(RunDir):
    """The run directory of a rank without a launcher; rank 0 renews the report with every case."""

    report: Path

    @property
    def is_private(self) -> bool:
        """Whether it is this rank's own, made for a plan file, and no folder that a user has prepared."""
        return self.report.parent != self.path

    def write_case(self, index: int, text: str) -> None:
        """Store the result of case `index`, and a report that holds it."""
        super().write_case(index, text)
        write_report(self, LaunchOutcome(OutcomeKind.RANK_DIED, 0.0, Culprit((), UNFINISHED)))


@dataclass
class NodeRank:
    """One rank of a run without a launcher, from its place in the world to its exit status."""

    rundir: NodeRun
    plan: Plan
    rank: int
    local_rank: int
    started: float = field(default_factory=time.perf_counter)
    peers: dict[int, Presence] = field(default_factory=dict)
    status: StatusWriter | None = None
    _ending: threading.Lock = field(default_factory=threading.Lock)

    def run(self, own: Presence) -> int:
        """Meet the others as `own`, run the plan, leave as rank 0 does; the exit status."""
        if not own.stale:
            self._be_heard()
        try:
            self.peers = meet(own, self.plan.timeout)
            self._work()
        except StaleFolderError as error:
            return self._stale(error)
        except Exception as error:
            return self._failed(error)
        return self._finished()

    def _be_heard(self) -> None:
        """Rank 0 has a report to write, for which torchrun leaves it half a minute; others say what ended them."""
        if self.rank == 0:
            write_report(self.rundir, LaunchOutcome(OutcomeKind.RANK_DIED, 0.0, Culprit((), UNFINISHED)))
            hear(self._end_by, grace=GRACE_SECONDS, interrupt=True)
        else:
            hear(self._end_by, grace=0.0, interrupt=False)

    def _work(self) -> None:
        self.status = StatusWriter(self.rundir, self.rank)
        install_stack_dump(self.rundir, self.rank)
        with exits_told(self.status):
            _run(self.plan, self.rundir, self.rank, self.local_rank, self.status)
        self.status.update(phase=Phase.DONE)

    def _finished(self) -> int:
        self._take_the_end()
        own = None
        if self.rank == 0:
            outcome = LaunchOutcome(OutcomeKind.FINISHED, time.perf_counter() - self.started)
            own = _told(write_report(self.rundir, outcome), self.rundir)
        status = agreed_exit(own)
        if self.rundir.is_private and status in COMPLETE:
            shutil.rmtree(self.rundir.path, ignore_errors=True)
        return status

    def _failed(self, error: Exception) -> int:
        self._take_the_end()
        if isinstance(error, GRPOVerifyError) and self.local_rank == 0:
            print(f"grpo-verify: {error}", file=sys.stderr)
        elif not isinstance(error, GRPOVerifyError | Terminated):
            traceback.print_exception(error)
        return self._last_word(error)

    def _stale(self, error: StaleFolderError) -> int:
        """The folder is another run's: nothing is written there. All ranks know, so one says it."""
        if self.rank == 0:
            print(f"grpo-verify: {error}", file=sys.stderr)
        if self.rundir.is_private:
            shutil.rmtree(self.rundir.path, ignore_errors=True)
        return agreed_exit(REFUSED)

    def _last_word(self, error: Exception) -> int:
        self.status = self.status or StatusWriter(self.rundir, self.rank)
        self.status.fail(error)
        world = int(os.environ["WORLD_SIZE"])
        words = last_words(self.rundir, self.rank, world, self.peers)
        if self.rank != 0:
            return REFUSED if isinstance(error, GRPOVerifyError) else 1
        died = deaths_among(self.peers, words)
        outcome = outcome_of(words, world, time.perf_counter() - self.started, died)
        report = write_report(self.rundir, outcome)
        if report.culprit is not None and not isinstance(error, GRPOVerifyError):
            print(f"grpo-verify: {report.culprit}", file=sys.stderr)
        return _told(report, self.rundir)

    def _end_by(self, name: str) -> None:
        """End this rank from the thread that heard the signal, unless its main thread is at that already."""
        if not self._ending.acquire(blocking=False):
            return
        if self.rank == 0:
            _leave(self._last_word(Terminated(name)))
        if self.status is not None:
            self.status.fail(Terminated(name))
        _leave(128 + signal.Signals[name])

    def _take_the_end(self) -> None:
        if not self._ending.acquire(blocking=False):
            threading.Event().wait()  # the thread that heard a signal ends this process
        if self.rank == 0:
            hear_no_more()


def run_node(place: Path, rank: int, local_rank: int) -> int:
    """Run the plan in `place`, a prepared directory or a plan file; the rank's exit status.

    That is the report's own, on every rank; torchrun makes 1 of anything but 0. Without a shared directory the
    report lies beside the plan file, on the node of rank 0. Where there is no plan one rank of each node says so.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, where the user's op is found and nothing is hidden
    try:
        rundir = _rundir(place)
        plan = _plan(rundir, place)
        own = _presence(rundir, plan, place, rank)
    except (RunDirError, OSError) as error:
        if local_rank == 0:
            print(f"grpo-verify: {error}", file=sys.stderr)
        return _refused_by_all(error, place, rank)
    return NodeRank(rundir, plan, rank, local_rank).run(own)


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


def _told(report: Report, rundir: NodeRun) -> int:
    print(f"grpo-verify: {report.verdict} (exit {report.exit_status}); grpo-verify show {rundir.report}")
    return report.exit_status


def _leave(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _refused_by_all(error: Exception, place: Path, rank: int) -> int:
    """Let the ranks of other nodes, which may have what this one lacks, know that there will be no run."""
    problems = error.problems if isinstance(error, GRPOVerifyError) else ()
    missing = problems or [Problem("error.folder", str(place), "a plan that can be read", str(error))]
    with suppress(Exception):
        meet(Presence.own(rank, place, {}, missing), MEETING_SECONDS)
    return REFUSED


def _presence(rundir: NodeRun, plan: Plan, place: Path, rank: int) -> Presence:
    """What this rank tells the others: what it would run, and why it refuses to. Rank 0 looks after the folder."""
    identity = Identity.of(plan)
    stale = staleness(rundir, rundir.report, plan) if rank == 0 else []
    folder = place if place.is_dir() else place.parent
    refusals = [*stale, *_too_few_ranks(plan), *changed_since(folder, identity)]
    return Presence.own(rank, rundir.path, identity_fields(identity), refusals)


def _too_few_ranks(plan: Plan) -> list[Problem]:
    world = int(os.environ["WORLD_SIZE"])
    if world >= plan.ranks:
        return []
    got = f"{world} (nodes times --nproc-per-node)"
    return [Problem("error.world", "ranks started by torchrun", f"at least {plan.ranks}", got)]
