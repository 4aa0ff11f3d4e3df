"""The command with a fault in one of its ranks, or at its parent: a short choice of tests/soak_faults.py.

Real workers compute; they are started by fork_torchrun.py, to save the seconds that torchrun takes.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.outcomes import outcome_of
from support.machinery_faults import CATALOGUE, MACHINERY, ROOT, complaints, play

TIMEOUT = 6.0
CHOSEN = (
    "kill in forward",
    "raise in start",
    "address_space in backward",
    "other_collective",
    "one of our errors on one rank",
    "version",
    "wrong_shape",
    "SIGTERM to the parent",
    "disk full at the report",
)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_fault_ends_the_run_as_it_must(name: str, tmp_path: Path) -> None:
    fault = next(each for each in CATALOGUE if each.name == name)
    ended = play(fault, tmp_path, timeout=TIMEOUT, forked=True, after=2.0)
    assert complaints(fault, ended, TIMEOUT) == [], ended.errors


@pytest.mark.parametrize(
    ("leave", "status", "words"),
    [
        (
            "import exit",
            2,
            r"(every rank|rank \d) failed in phase start: .* got SystemExit\('bye'\) at leave \(leaving_op.py:",
        ),
        # The status is known only where the launcher looks before the starter collects it; words: test_blame.
        ("call _exit", 4, r"rank \d died in case 'seed/s0/1x1' \((exit status 0\), left of its own accord|logs)"),
    ],
)
def test_an_op_that_leaves_is_told_as_one(tmp_path: Path, leave: str, status: int, words: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, str(MACHINERY / "faulty_cli.py"), "--forked", "--json", "--op", "leaving_op:loss"),
            *("--tp", "2", "--batch", "seed", "--no-controls", "--out", "out"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{MACHINERY}", "GRPO_TEST_LEAVE": leave},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert re.match(words, json.loads(done.stdout)["culprit"])


def test_a_run_without_a_fault_is_green(tmp_path: Path) -> None:
    fault = CATALOGUE[0]
    ended = play(fault, tmp_path, timeout=60, forked=True)
    assert complaints(fault, ended, 60) == [], ended.errors
    wrong = dataclasses.replace(fault, status=4, words="rank 1 died")
    assert len(complaints(wrong, ended, 60)) == 2


def test_a_disk_that_is_full_from_the_start_is_no_internal_error() -> None:
    outcome = outcome_of(OSError(errno.ENOSPC, "No space left on device"), ["grpo-verify", "--json"])
    assert outcome.status == 4
    assert outcome.err.startswith("grpo-verify: no room to write: [Errno 28] No space left on device")
