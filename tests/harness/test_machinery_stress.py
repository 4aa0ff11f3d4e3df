"""--stress: other timing in every repeat but the first, and the same bits."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_contract import ShardingSpec
from harness.batch_spec import BUILT_IN, contract_for
from harness.batches import built_in
from harness.candidate import Groups, run_candidate
from harness.ops import resolve
from harness.request import plan_for
from harness.run_config import RunConfig
from harness.stress import LONGEST_SLEEP, other_timing
from support.machinery_faults import CATALOGUE, play

CPU = torch.device("cpu")


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(time, "sleep", taken.append)
    return taken


def some_work() -> torch.Tensor:
    x = torch.ones(8)
    for _ in range(200):
        x = x * 1.5 - 0.5
    return x


def test_the_first_run_is_left_alone(sleeps: list[float]) -> None:
    with other_timing(0, 0, CPU):
        some_work()
    assert sleeps == []


def test_repeats_and_ranks_sleep_differently_but_repeatably(sleeps: list[float]) -> None:
    seen = []
    for run, rank in ((1, 0), (1, 1), (2, 0), (1, 0)):
        sleeps.clear()
        with other_timing(run, rank, CPU):
            some_work()
        seen.append(tuple(sleeps))
    assert seen[0] == seen[3]
    assert len(set(seen)) == 3
    assert all(0 <= each <= LONGEST_SLEEP for each in seen[0])


def test_bits_do_not_depend_on_timing() -> None:
    spec = BUILT_IN["seed"]
    batch = built_in(spec, 0, contract_for(spec, RunConfig()))
    op = resolve("grpo_loss", None, batch.contract, "cpu")
    alone = ShardingSpec.even(1, 1, contract=batch.contract)
    runs = []
    for number in range(2):
        with other_timing(number, 0, CPU):
            runs.append(run_candidate(op, batch, alone, Groups()))
    for name, value in runs[0].items():
        assert value.numpy().tobytes() == runs[1][name].numpy().tobytes()


def test_the_command_is_green_under_stress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_VERIFY_STRESS", "true")
    monkeypatch.setenv("GRPO_VERIFY_REPEAT", "3")
    monkeypatch.setenv("GRPO_VERIFY_CONTROLS", "off")
    ended = play(CATALOGUE[0], tmp_path, timeout=60, forked=True)
    assert ended.status == 0, ended.errors
    plans = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*/plan.json")]
    assert [plan["stress"] for plan in plans] == [True]


@pytest.mark.parametrize(("settings", "words"), [({"repeat": 1}, "--repeat is 1"), ({"virtual": True}, "virtual")])
def test_a_run_that_stress_cannot_disturb_says_so(settings: dict[str, Any], words: str) -> None:
    plan = plan_for(RunConfig(tp=2, batch=("seed",), device="cpu", stress=True, **settings))
    assert any(words in note for note in plan.notes if "--stress" in note)
    assert not any("--stress" in note for note in plan_for(RunConfig(tp=2, batch=("seed",), device="cpu")).notes)
