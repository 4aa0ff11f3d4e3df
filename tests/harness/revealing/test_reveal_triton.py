"""The orders of the Triton kernels: in the interpreter of a process of its own, and on a device where there is."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.revealing.probe_shape import ProbeShape
from harness.revealing.reveal import op_to_ask, reveal, reveal_status

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("reveal_interpreted.py")
ROOT = SCRIPT.parents[3]
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
PATHS = {"1x1", "1x1 gradient=forward", "2x2"}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """One process for both ops: the interpreter must be chosen before triton is imported."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": paths, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, env=env, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_layout_and_path_adds_in_one_order(outcomes: dict[str, Any]) -> None:
    good = outcomes["good"]
    assert good["status"] == 0
    assert good["interpreted"]
    for each in good["reductions"]:
        assert each["agrees"]
        assert each["trees"].keys() == PATHS
        assert not each["not_revealed"]
    assert "(triton)" not in good["text"]
    assert "in Triton's interpreter: a GPU's own order may be another" in good["text"]


def test_the_native_order_stands_beside(outcomes: dict[str, Any]) -> None:
    good = outcomes["good"]
    tokens, sequences = (good["reductions"][place] for place in (0, 2))
    assert tokens["native"] == [[0, 2], [1, 3]]
    assert sequences["native"] == sequences["trees"]["1x1"]
    assert "the native op: the same order" in good["text"]


def test_a_planted_order_is_seen(outcomes: dict[str, Any]) -> None:
    planted = outcomes["planted"]
    assert planted["status"] == 1
    changed = {each["name"] for each in planted["reductions"] if not each["agrees"]}
    assert changed == {"token sum, kl"}
    assert "first difference: 1x1 adds (0 2) where 1x2 adds (0 1)" in planted["text"]


@NEEDS_CUDA
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["native", "triton"])
def test_on_a_device(backend: str, dtype: str) -> None:
    shape = ProbeShape(sequences=4, tokens=8, columns=8, tiles=4, dtype=dtype)
    found = reveal(op_to_ask(backend, None, shape, "cuda"), [(1, 1), (2, 2)], shape, device="cuda")
    assert reveal_status(found) == 0
    for each in found:
        assert each.layouts == {"1x1", "2x2"}, each.refusals
