"""`reveal` and `snapshot` survive the op: no answer is never a status of 0, and nobody is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import harness.cli
from harness.inspection.op_process import CALLS_OPS
from harness.system.processes import is_alive

ROOT = Path(harness.cli.__file__).resolve().parents[1]
HERE = Path(__file__).parent
CLI = (sys.executable, "-c", "import sys; from harness.cli import main; status = main(); "
       "assert 'torch' not in sys.modules; sys.exit(status)")  # fmt: skip


def start(*tokens: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*CLI, *tokens], cwd=HERE, env=environ, text=True, **pipes)


def ask(*tokens: str) -> tuple[int, str, str]:
    process = start(*tokens)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("exits", "ended the process (exit status 0)"),
        ("exits_at_once", "ended the process (exit status 0)"),
        ("is_killed", "ended the process (SIGKILL)"),
        ("raises", "raised RuntimeError: no such luck, in raises (ending_ops.py:25)"),
        ("is_interrupted", "raised KeyboardInterrupt, in is_interrupted (ending_ops.py:29)"),
        ("sleeps", "gave no answer for 0.5 seconds; it was at sleeps (ending_ops.py:33)"),
    ],
)
def test_an_op_without_an_answer_breaks_the_command(name: str, words: str, tmp_path: Path) -> None:
    op, folder = f"ending_ops:{name}", str(tmp_path)
    told = ask("snapshot", "check", folder, "--batch", "seed", "--op", op, "--timeout", "0.5", "--json")
    assert told[0] == 4
    assert told[2].splitlines()[-1] == f"grpo-verify: the op {op} {words}"
    report = json.loads(told[1])
    assert (report["exit_status"], report["notes"]) == (4, [f"the op {op} {words}"])


def test_reveal_and_save_break_alike(tmp_path: Path) -> None:
    status, out, err = ask("reveal", "--op", "ending_ops:exits", "--json")
    assert (status, json.loads(out)["exit_status"]) == (4, 4)
    assert err.startswith("an op's own words\n"), "what an op prints stays out of the answer"
    status, out, err = ask(
        "snapshot", "save", str(tmp_path), "--batch", "seed", "--op", "ending_ops:exits_at_once"
    )
    assert (status, out, "exit status 0" in err) == (4, "", True)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and relies on the kernel's guard")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_leaves_nobody_behind(number: signal.Signals, status: int) -> None:
    process = start("reveal", "--op", "ending_ops:sleeps")
    try:
        child = _child(process.pid)
        time.sleep(0.5)
        process.send_signal(number)
        process.communicate(timeout=20)
        assert process.returncode == status
        end = time.monotonic() + 10
        while is_alive(child) and time.monotonic() < end:
            time.sleep(0.05)
        assert not is_alive(child)
    finally:
        process.kill()


def _child(parent: int) -> int:
    """The process that `parent` has started, once it has become the one that does the work."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"harness.inspection.op_process" in command.partition(b"guard.py")[0]:
                return int(pid)
        time.sleep(0.05)
    raise AssertionError("no child")


def test_the_files_that_call_an_op_are_there() -> None:
    assert CALLS_OPS
    assert all(Path(name).is_file() for name in CALLS_OPS)


def test_reveal_refuses_a_backend_by_the_flag_that_names_it() -> None:
    status, _, err = ask("reveal", "--op", "triton", "--device", "cpu")
    assert (status, err.splitlines()[-1].partition(", got")[0]) == (
        2,
        "grpo-verify: invalid request: --op: expected a backend that can run on cpu here",
    )
