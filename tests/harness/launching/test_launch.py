"""Launches that end in every way there is; most start their ranks by fake_torchrun.py, a few by torchrun."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.files.rundir import RunDir
from harness.launching.launch import launch
from harness.launching.launch_log import closed_pids, first_failure
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from harness.launching.launch_request import LaunchRequest, torchrun_command, worker_environment
from harness.launching.launch_watch import Watch
from harness.launching.status import Phase, StatusWriter
from harness.runs.launch_end import culprit_line
from harness.system.processes import is_alive

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CASES = ["seed 1x2", "seed 2x1"]
PATHS = {"PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}"}

PARENT = """
import json, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {here!r}]
from harness.launching.launch import launch
from harness.files.rundir import RunDir
from test_launch import fake_request
outcome = launch(fake_request(RunDir.open(Path({rundir!r})), ranks=2, timeout=60))
print(json.dumps([outcome.kind, outcome.signal, outcome.left]))
"""


def fake_torchrun(request: LaunchRequest) -> list[str]:
    return [
        *(request.python, str(HERE / "fake_torchrun.py"), str(request.ranks)),
        *(request.python, "-m", *request.worker),
    ]


def fake_request(rundir: RunDir, **changes: Any) -> LaunchRequest:
    request = LaunchRequest(
        ranks=3,
        rundir=rundir,
        timeout=1.5,
        start_timeout=30,
        module="fake_worker",
        env=PATHS,
        command=fake_torchrun,
    )
    return dataclasses.replace(request, **changes)


@dataclasses.dataclass
class Played:
    outcome: LaunchOutcome
    rundir: RunDir
    cases: list[str]

    @property
    def reason(self) -> str:
        assert self.outcome.culprit is not None
        return self.outcome.culprit.reason


Play = Callable[..., Played]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Play a plan to its end; whatever the end, nobody may be left."""

    def run(plan: dict[str, Any] | None = None, **changes: Any) -> Played:
        rundir = RunDir.create(tmp_path)
        rundir.write_plan(json.dumps({"cases": CASES, **(plan or {})}))
        cases: list[str] = []
        outcome = launch(
            fake_request(rundir, **changes), on_case=lambda index, text: cases.append(json.loads(text)["name"])
        )
        assert outcome.left == ()
        assert left_behind(rundir) == []
        return Played(outcome, rundir, cases)

    return run


def left_behind(rundir: RunDir) -> list[str]:
    """The command lines that name the run directory, zombies aside."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(rundir.path) in line and int(entry.name) != os.getpid() and is_alive(int(entry.name)):
            lines.append(line)
    return lines


def part(rank: int, act: str, phase: Phase = Phase.FORWARD, **more: Any) -> dict[str, Any]:
    """A plan in which `rank` misbehaves in the second case."""
    return {"parts": {str(rank): {"case": 1, "phase": phase, "act": act, **more}}}


def test_everyone_fine(play: Play) -> None:
    played = play()
    assert played.outcome.kind is OutcomeKind.FINISHED
    assert played.outcome.culprit is None
    assert played.cases == CASES
    assert [status.phase for status in played.outcome.statuses] == [Phase.DONE] * 3
    assert [status.step for status in played.outcome.statuses] == [8] * 3


def test_a_hang_is_blamed_on_the_late_rank_with_its_frame(play: Play) -> None:
    played = play(part(1, "hang"))
    outcome = played.outcome
    assert outcome.kind is OutcomeKind.HUNG
    assert outcome.culprit is not None
    assert (outcome.culprit.ranks, outcome.culprit.phase, outcome.culprit.case) == ((1,), "forward", CASES[1])
    assert played.reason.startswith(
        "rank 1 stopped answering in forward of case 'seed 2x1' after collective 1 "
        "while ranks 0, 2 wait in collective 2; it was at hang_here (fake_worker.py:"
    )
    assert played.cases == CASES[:1]
    assert outcome.seconds < 1.5 + 10


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.COMPARE])
def test_a_stopped_rank_is_named_and_ended(play: Play, phase: Phase) -> None:
    outcome = play(part(1, "stop", phase)).outcome
    assert outcome.kind is OutcomeKind.HUNG
    assert outcome.culprit is not None
    assert outcome.culprit.explained
    assert outcome.culprit.reason.startswith(
        f"rank 1 is stopped (by a signal such as SIGSTOP), in {phase} of case 'seed 2x1' while ranks 0, 2 wait in "
    )
    assert outcome.seconds < 1.5 + 10


def test_slow_progress_is_no_hang(play: Play) -> None:
    slow = {"case": 1, "phase": "forward", "act": "sleep", "seconds": 1.0}
    later = {**slow, "phase": "backward"}
    assert play({"parts": {"0": slow, "1": later}}, timeout=1.6).outcome.kind is OutcomeKind.FINISHED


def test_processes_that_ignore_sigterm_go_too(play: Play) -> None:
    outcome = play(part(2, "stubborn", Phase.BACKWARD)).outcome
    assert outcome.kind is OutcomeKind.HUNG
    assert outcome.culprit is not None
    assert outcome.culprit.ranks == (2,)
    assert outcome.seconds < 1.5 + 10


@pytest.mark.parametrize(
    ("act", "more", "cause"),
    [
        ("kill", {}, "(signal 9, SIGKILL)"),
        ("kill", {"signal": 11}, "(signal 11, SIGSEGV)"),
        ("kill", {"signal": 15}, "(signal 15, SIGTERM)"),
        ("exit", {"status": 3}, "(exit status 3)"),
    ],
)
def test_a_death_is_blamed_on_the_rank_that_died_first(
    play: Play, act: str, more: dict[str, int], cause: str
) -> None:
    played = play(part(1, act, Phase.BACKWARD, **more), timeout=60)
    assert played.outcome.kind is OutcomeKind.RANK_DIED
    assert played.reason == f"rank 1 died in backward of case 'seed 2x1' {cause}"
    assert played.cases == CASES[:1]
    assert played.outcome.seconds < 10


def test_a_rank_that_leaves_early_with_status_0_has_died(play: Play) -> None:
    played = play(part(0, "exit", status=0), timeout=60)
    assert played.outcome.kind is OutcomeKind.RANK_DIED
    # Its status is known only where the launcher looks before the starter collects it.
    known = " (exit status 0), left of its own accord"
    assert played.reason.partition(known)[0] == "rank 0 died in forward of case 'seed 2x1'"


def test_a_rank_that_dies_before_its_first_word_is_found(play: Play) -> None:
    played = play({"silent": 1}, timeout=60)
    assert played.outcome.kind is OutcomeKind.RANK_DIED
    assert played.reason == "rank 1 died at its start (exit status 5)"


def test_a_bad_end_after_done_is_not_finished(play: Play) -> None:
    played = play({"bad_end": 1})
    assert played.outcome.kind is OutcomeKind.RANK_DIED
    assert played.reason == "rank 1 died after it was done (exit status 7)"
    assert played.cases == CASES


def test_an_error_comes_back_with_code_and_phase(play: Play) -> None:
    played = play(part(2, "raise", Phase.PREFLIGHT), timeout=60)
    outcome = played.outcome
    assert outcome.kind is OutcomeKind.RANK_FAILED
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.phase) == ("planned", "preflight")
    assert outcome.error.message == "rank 2 met [3, 17]\nsecond line"
    assert "PlannedError" in outcome.error.traceback
    assert played.reason == "rank 2 failed in preflight of case 'seed 2x1': rank 2 met [3, 17]"
    assert outcome.seconds < 10


def test_an_error_of_all_ranks_is_one_error(play: Play) -> None:
    parts = {str(rank): {"case": 1, "phase": "preflight", "act": "raise"} for rank in range(3)}
    played = play({"parts": parts}, timeout=60)
    assert played.outcome.culprit is not None
    assert played.outcome.culprit.ranks == (0, 1, 2)
    assert played.reason.startswith("every rank failed in preflight of case 'seed 2x1': ")


def test_a_rank_that_never_gets_ready_is_overdue(play: Play) -> None:
    played = play({"unready": 2}, start_timeout=12)
    assert played.outcome.kind is OutcomeKind.HUNG
    assert played.reason.startswith("rank 2 did not get ready while ranks 0, 1 wait in collective 1; it was at ")
    assert 12 < played.outcome.seconds < 22


def test_a_missing_python_could_not_start(play: Play) -> None:
    played = play(python="/no/such/python")
    assert played.outcome.kind is OutcomeKind.COULD_NOT_START
    assert "/no/such/python: No such file" in played.reason


def test_a_command_that_fails_could_not_start(play: Play) -> None:
    played = play(command=lambda request: [request.python, "-c", "raise SystemExit('no such option')"])
    assert played.outcome.kind is OutcomeKind.COULD_NOT_START
    assert played.reason == "the launched command ended before any rank had started: no such option"


def test_a_module_that_cannot_be_imported_could_not_start(play: Play) -> None:
    played = play(module="no_such_worker_module", command=torchrun_command, ranks=1)
    assert played.outcome.kind is OutcomeKind.COULD_NOT_START
    assert played.reason.startswith("rank 0 ended before any rank had started: ")
    assert played.reason.endswith("No module named no_such_worker_module")


def test_ranks_see_the_users_folder_last_and_one_thread(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = HERE.parent
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/elsewhere")
    seen = json.loads((play().rundir.path / "seen-0.json").read_text())
    assert seen["path"][-1] == str(folder)
    assert {seen["env"][name] for name in ("PYTHONSAFEPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS")} == {"1"}
    assert "TORCHELASTIC_ERROR_FILE" not in seen["env"]


def test_the_checkout_comes_first_on_the_import_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", f".{os.pathsep}/somewhere")
    monkeypatch.chdir(tmp_path)
    environment = worker_environment(LaunchRequest(1, RunDir.create(tmp_path)), "mark")
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT), str(tmp_path), "/somewhere"]


def test_a_last_word_between_two_looks_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may report `done` and end after its status was read and before its process is looked for."""
    rundir = RunDir.create(tmp_path)
    writer = StatusWriter(rundir, 0)

    def ends_now(pid: int) -> bool:
        writer.update(phase=Phase.DONE)
        return False

    monkeypatch.setattr("harness.launching.launch_watch.is_alive", ends_now)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        watch = Watch(fake_request(rundir, ranks=1), process, lambda index, text: None)
        watch.look()
    assert watch.deaths() == []
    assert watch.all_done


def test_a_request_that_cannot_be_is_refused(tmp_path: Path) -> None:
    rundir = RunDir.create(tmp_path)
    with pytest.raises(ValueError, match="ranks: expected at least 1, got 0"):
        LaunchRequest(0, rundir)
    with pytest.raises(ValueError, match="timeouts: expected above 0"):
        LaunchRequest(1, rundir, timeout=0)


def test_a_callback_that_raises_leaves_nobody(tmp_path: Path) -> None:
    rundir = RunDir.create(tmp_path)
    rundir.write_plan(json.dumps({"cases": CASES, **part(0, "hang")}))

    def refuse(index: int, text: str) -> None:
        raise RuntimeError("no paper")

    with pytest.raises(RuntimeError, match="no paper"):
        launch(fake_request(rundir, timeout=60), on_case=refuse)
    assert left_behind(rundir) == []


def test_a_folder_that_vanishes_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "out"
    rundir = RunDir.create(gone)
    rundir.write_plan(json.dumps({"cases": CASES, **part(0, "sleep", seconds=0.5)}))
    outcome = launch(fake_request(rundir), on_case=lambda index, text: gone.rename(tmp_path / "gone"))
    assert outcome.kind is not OutcomeKind.FINISHED
    line = culprit_line(outcome, rundir)
    assert line is not None
    assert line.endswith(f"; somebody removed the folder of the run while it ran: {rundir.path}")
    assert left_behind(rundir) == []


def test_it_runs_outside_the_main_thread(play: Play) -> None:
    results: list[Played] = []
    thread = threading.Thread(target=lambda: results.append(play()))
    thread.start()
    thread.join(30)
    assert results[0].outcome.kind is OutcomeKind.FINISHED


def test_handlers_come_back(play: Play) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    play()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def start_parent(tmp_path: Path, act: str) -> tuple[RunDir, subprocess.Popen[str]]:
    """A launcher in a process of its own, once both ranks are stuck or at work."""
    rundir = RunDir.create(tmp_path)
    rundir.write_plan(json.dumps({"cases": CASES, **part(1, act)}))
    script = PARENT.format(root=str(ROOT), here=str(HERE), rundir=str(rundir.path))
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + 30
    while not rundir.case(0).exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert rundir.case(0).exists()
    time.sleep(0.3)
    return rundir, parent


@pytest.mark.parametrize(
    ("numbers", "act"),
    [
        ([signal.SIGINT], "hang"),
        ([signal.SIGTERM], "hang"),
        ([signal.SIGINT, signal.SIGINT], "stubborn"),
    ],
)
def test_an_interrupted_launcher_ends_everyone(tmp_path: Path, numbers: list[signal.Signals], act: str) -> None:
    rundir, parent = start_parent(tmp_path, act)
    started = time.monotonic()
    for number in numbers:
        parent.send_signal(number)
        time.sleep(0.3)
    output, _ = parent.communicate(timeout=20)
    assert json.loads(output) == ["interrupted", numbers[0].name, []]
    assert left_behind(rundir) == []
    assert time.monotonic() - started < 3


def test_a_killed_launcher_takes_its_ranks_along(tmp_path: Path) -> None:
    rundir, parent = start_parent(tmp_path, "hang")
    parent.kill()
    parent.communicate(timeout=20)
    end = time.monotonic() + 5
    while left_behind(rundir) and time.monotonic() < end:
        time.sleep(0.05)
    assert left_behind(rundir) == []


def test_torchrun_finishes(play: Play) -> None:
    played = play(command=torchrun_command, ranks=2, timeout=60)
    assert played.outcome.kind is OutcomeKind.FINISHED
    assert played.cases == CASES


def test_torchrun_tells_its_victims_from_the_culprit(play: Play) -> None:
    """Pins the two lines of torchrun's log that are read."""
    played = play({"silent": 1}, command=torchrun_command, ranks=2, timeout=60)
    assert played.outcome.kind is OutcomeKind.RANK_DIED
    assert played.reason == "rank 1 died at its start (exit status 5)"
    assert first_failure(played.rundir) == (1, 5)
    assert {status.pid for status in played.outcome.statuses} <= closed_pids(played.rundir)
