"""No flag that says what to run is silently ignored: what contradicts is refused, what changes nothing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.planning.unused_flags import not_for
from harness.runs.node_plan import prepare_nodes
from harness.runs.request import plan_for
from harness.settings.devices import Machine
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig

CAPTURE = str(Path(__file__).resolve().parents[2] / "data" / "smollm2-b4-t8.safetensors")
FOREIGN = "examples.all_reduce_loss:all_reduce_loss"
NO_GPU = Machine(2, 0, False)
GPU = Machine(2, 1, True)


def notes(machine: Machine = NO_GPU, **given: Any) -> tuple[str, ...]:
    return plan_for(RunConfig(**{"tp": 2, "batch": ("seed",), "controls": "off", **given}), machine).notes


@pytest.mark.parametrize(
    ("given", "note"),
    [
        (
            {"batch": (CAPTURE,), "seed": (3,)},
            "--seed is for built-in batches: smollm2-b4-t8 stays as captured",
        ),
        (
            {"batch": ("seed", CAPTURE), "seed": (3,), "sweep": ("raggedness=full",)},
            "--seed and --sweep are for built-in batches: smollm2-b4-t8 stays as captured",
        ),
        ({"ranks_per_device": 2}, "--ranks-per-device is for GPUs, and these ranks are on the CPU"),
        (
            {"ranks_per_device": 2, "virtual": True},
            "--ranks-per-device is for GPUs, and these ranks are in one process",
        ),
        ({"shared_transport": "gloo"}, "--shared-transport is for GPUs, and these ranks are on the CPU"),
        (
            {"shared_transport": "gloo", "virtual": True},
            "--shared-transport is for GPUs, and these ranks are in one process",
        ),
        (
            {"op": FOREIGN, "backend": "native"},
            f"--backend native changes nothing: {FOREIGN} brings its own, and there are no planted faults",
        ),
        (
            {"op": FOREIGN, "backend": "native", "controls": "on"},
            f"--backend native is that of the planted faults: {FOREIGN} brings its own",
        ),
        (
            {"dry_run": True, "out": Path("kept"), "format": "json"},
            "--out and --format: a dry run prints this text, and writes nothing",
        ),
    ],
)
def test_what_changes_nothing_is_said(given: dict[str, Any], note: str) -> None:
    assert note in notes(**given)


def test_a_run_without_idle_flags_says_nothing_of_the_kind() -> None:
    assert notes() == notes(seed=(3,)) == ()
    assert notes(GPU, device="cuda", ranks_per_device=2) == ()


@pytest.mark.parametrize("transport", ["gloo", "nccl"])
def test_what_carries_tensors_on_a_shared_gpu_is_idle_where_none_is_shared(transport: str) -> None:
    told = notes(Machine(8, 4, True), device="cuda", shared_transport=transport)
    assert told == ("--shared-transport changes nothing: every rank has a GPU of its own",)
    assert notes(GPU, device="cuda", shared_transport="gloo") == ()


def test_a_capture_says_that_its_dtype_stays() -> None:
    plan = plan_for(RunConfig(tp=2, batch=(CAPTURE,), dtype="float16", controls="off"), NO_GPU)
    told = [note for batch in plan.batches.values() for note in batch.notes]
    assert any("as stored; --dtype is not for captures" in note for note in told)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"op": "native", "backend": "triton"},
            r"--backend: expected native or nothing \(--op native is given\), got triton",
        ),
        (
            {"dry_run": True, "resume": Path("earlier")},
            r"--resume: expected nothing \(--dry-run goes on with no run\), got earlier",
        ),
    ],
)
def test_what_contradicts_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        notes(**given)


def test_a_backend_named_twice_alike_is_fine() -> None:
    assert notes(op="native", backend="native") == ()


def test_a_plan_is_written_or_looked_at(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--dry-run: expected nothing beside plan"):
        prepare_nodes(RunConfig(tp=2, device="cpu", out=tmp_path / "plan", dry_run=True))
    assert not (tmp_path / "plan").exists()
    text = prepare_nodes(RunConfig(tp=2, device="cpu", batch=("seed",), out=tmp_path / "plan", quiet=True))
    assert text.endswith("note: --quiet changes nothing in plan, which prints this text\n")


def test_only_what_was_typed_is_told() -> None:
    given = RunConfig(tp=2, repeat=3, origins={"tp": "--tp", "repeat": "GRPO_VERIFY_REPEAT"})
    assert not_for(given, ("tp", "repeat", "stress"), "a snapshot") == ("--tp changes nothing in a snapshot",)
    assert not_for(given, ("repeat", "stress"), "a snapshot") == ()
