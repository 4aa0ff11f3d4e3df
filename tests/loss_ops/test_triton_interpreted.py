"""The Triton kernels on the CPU, in the interpreter of a process of its own: right, and free of layout."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("triton_interpreted.py")
ROOT = SCRIPT.parents[2]
CASES = ("default", "k2_per_sequence_tempered", "k1_length_power_no_penalty", "fixed_constant_mean_only")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """One process for all cases: the interpreter must be chosen before triton is imported."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": paths, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), "dense", *CASES]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["case"]: line for line in lines}


@pytest.mark.parametrize("name", CASES)
def test_against_the_oracle(outcomes: dict[str, Any], name: str) -> None:
    errors = outcomes[name]["errors"]
    wrong = {quantity: error for quantity, error in errors.items() if error > 5e-6}
    assert not wrong
    assert errors["clip_counts"] == errors["per_sequence_active_tokens"] == 0


@pytest.mark.parametrize("name", CASES)
def test_paths_and_layouts_give_the_same_bits(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes[name]["drifted"] == {}


def test_when_the_gradient_is_written_changes_no_bit(outcomes: dict[str, Any]) -> None:
    assert all(outcomes["dense"]["same"].values()), outcomes["dense"]["same"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("scaled", "grad_scale"),
        ("leaf", "a leaf that requires grad"),
        ("shared", "memory of its own"),
        ("used", "modified by an inplace operation"),
    ],
)
def test_in_place_refuses(outcomes: dict[str, Any], what: str, words: str) -> None:
    assert words in outcomes["dense"]["refused"][what]
