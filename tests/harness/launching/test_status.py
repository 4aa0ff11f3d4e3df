"""Run directories and rank statuses: what is written is what is read, and by nobody else."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_contract import InputError
from harness.files.rundir import RunDir, RunDirError, read_text, write_atomic
from harness.launching.op_exits import OpExitError, exits_told
from harness.launching.status import CaseRef, Phase, StatusWriter, read_status


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_directory_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        rundir = RunDir.claim(tmp_path / "a" / "b")
        rundir.write_plan("{}")
        StatusWriter(rundir, 0).tick()
    finally:
        os.umask(before)
    assert mode(rundir.path) == 0o700
    assert {mode(path) for path in rundir.path.rglob("*") if path.is_file()} == {0o600}


def test_create_never_reuses(tmp_path: Path) -> None:
    assert RunDir.create(tmp_path / "new").path != RunDir.create(tmp_path / "new").path


def test_claim_takes_an_empty_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert mode(RunDir.claim(tmp_path).path) == 0o700


def test_claim_refuses_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunDirError, match=r"holds 1 entries, 'thesis.tex' among them") as caught:
        RunDir.claim(tmp_path)
    assert caught.value.code == "run_dir"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex"]


def test_claim_refuses_an_earlier_run(rundir: RunDir) -> None:
    with pytest.raises(RunDirError, match="an earlier run's directory"):
        RunDir.claim(rundir.path)


def test_claim_refuses_a_file_and_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(RunDirError, match="not a directory"):
            RunDir.claim(tmp_path / name)


def test_open_wants_a_prepared_directory(rundir: RunDir, tmp_path: Path) -> None:
    assert RunDir.open(rundir.path) == rundir
    with pytest.raises(RunDirError, match="got another directory"):
        RunDir.open(tmp_path)
    with pytest.raises(RunDirError, match="got no directory"):
        RunDir.open(tmp_path / "none")


def test_case_files_are_listed_in_order_and_half_written_ones_are_not(rundir: RunDir) -> None:
    for index in (12, 3, 100000):
        rundir.write_case(index, "{}")
    (rundir.path / "cases" / ".00004.json.77.tmp").touch()
    assert rundir.case_indices() == [3, 12, 100000]


def test_a_write_that_fails_leaves_the_old_text_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")
    assert read_text(path) == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_status_tells_phase_case_and_steps(rundir: RunDir) -> None:
    assert read_status(rundir, 1) is None
    writer = StatusWriter(rundir, 1)
    first = read_status(rundir, 1)
    assert first is not None
    assert (first.rank, first.pid, first.phase, first.case) == (1, os.getpid(), Phase.START, None)
    writer.tick()
    writer.update(case=CaseRef(index=4, name="seed 2x2"), phase=Phase.FORWARD)
    writer.tick()
    writer.tick()
    status = read_status(rundir, 1)
    assert status is not None
    assert (status.phase, status.case) == (Phase.FORWARD, CaseRef(index=4, name="seed 2x2"))
    assert (status.step, status.collectives, status.idle) == (3, 2, False)


def test_a_new_case_starts_afresh(rundir: RunDir) -> None:
    writer = StatusWriter(rundir, 0)
    writer.update(case=CaseRef(index=0, name="a"), idle=True)
    writer.tick()
    writer.update(case=CaseRef(index=1, name="b"))
    status = read_status(rundir, 0)
    assert status is not None
    assert (status.phase, status.idle, status.step, status.collectives) == (Phase.CASE, False, 1, 0)


def test_a_failure_keeps_its_phase_code_and_traceback(rundir: RunDir) -> None:
    writer = StatusWriter(rundir, 0)
    writer.update(case=CaseRef(index=0, name="a"), phase=Phase.BACKWARD)
    try:
        raise RunDirError("bad \ud800 text")
    except RunDirError as error:
        writer.fail(error)
    status = read_status(rundir, 0)
    assert status is not None
    assert status.error is not None
    assert (status.phase, status.error.phase, status.error.code) == (Phase.FAILED, Phase.BACKWARD, "run_dir")
    assert status.error.message == "bad \\ud800 text"
    assert "test_a_failure_keeps" in status.error.traceback


def test_an_error_without_a_code_goes_by_its_class(rundir: RunDir) -> None:
    writer = StatusWriter(rundir, 0)
    writer.fail(SystemExit(3))
    status = read_status(rundir, 0)
    assert status is not None
    assert status.error is not None
    assert (status.error.code, status.error.message) == ("SystemExit", "3")


class Unspeakable(Exception):
    @property
    def code(self) -> str:
        raise OSError

    def __str__(self) -> str:
        raise ZeroDivisionError


def test_an_error_that_cannot_be_asked_keeps_its_class_and_place(rundir: RunDir) -> None:
    writer = StatusWriter(rundir, 0)
    try:
        raise Unspeakable
    except Unspeakable as error:
        writer.fail(error)
    status = read_status(rundir, 0)
    assert status is not None
    assert status.error is not None
    assert status.error.code == "Unspeakable"
    words = "no message, as its __str__ raises ZeroDivisionError; raised at test_an_error_that_cannot_be_asked_"
    assert status.error.message.startswith(words)


class Foreign(BaseException):
    """No Exception, as SystemExit is none."""


@pytest.mark.parametrize("stop", [SystemExit(0), SystemExit("bye"), Foreign("bye")])
@pytest.mark.parametrize(("phase", "kind"), [(Phase.START, InputError), (Phase.FORWARD, OpExitError)])
def test_an_op_that_ends_the_process_has_failed(
    rundir: RunDir, stop: BaseException, phase: Phase, kind: type[Exception]
) -> None:
    writer = StatusWriter(rundir, 0)
    writer.update(phase=phase)
    words = f"{re.escape(repr(stop))} at test_an_op_that_ends"
    with pytest.raises(kind, match=words), exits_told(writer):
        raise stop


def test_an_unreadable_status_is_none(rundir: RunDir) -> None:
    write_atomic(rundir.status(0), json.dumps({"rank": 0}))
    assert read_status(rundir, 0) is None


def test_a_tick_is_cheap(rundir: RunDir) -> None:
    writer = StatusWriter(rundir, 0)
    started = time.perf_counter()
    for _ in range(1000):
        writer.tick()
    assert (time.perf_counter() - started) / 1000 < 0.2e-3


def test_the_launcher_imports_no_torch() -> None:
    script = (
        "import sys, harness.launching.launch as _\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    )
    root = Path(__file__).resolve().parents[3]
    assert subprocess.run([sys.executable, "-c", script], cwd=root, check=False).returncode == 0
