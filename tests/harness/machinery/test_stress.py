"""--stress: other timing in every repeat but the first, and the same bits."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from grpo_contract import ShardingSpec
from harness.own_ops.ops import resolve
from harness.planning.planned_cases import CONTROL_SEED
from harness.planning.stress_notes import stress_notes
from harness.ranks.batches import built_in
from harness.ranks.candidate import Groups, run_candidate
from harness.ranks.stress import LONGEST_SLEEP, other_timing
from harness.ranks.stress_control import disturbed_repeats
from harness.runs.request import plan_for
from harness.settings.batch_spec import BUILT_IN, CONTROL, contract_for
from harness.settings.run_config import RunConfig
from loss_ops import arrival_order
from loss_ops.controls import faulty_op
from loss_ops.virtual_layout import run_layout
from reports import CaseResult, Verdict
from support.batches import drawn
from support.bits import differing
from support.machinery_faults import CATALOGUE, play

CPU = torch.device("cpu")
CONTROL_OF_STRESS = "token_sum_in_arrival_order"


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


def test_the_command_is_green_under_stress_and_says_what_became_of_its_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_VERIFY_STRESS", "true")
    monkeypatch.setenv("GRPO_VERIFY_REPEAT", "3")
    ended = play(CATALOGUE[0], tmp_path, timeout=60, forked=True)
    assert ended.status == 0, ended.errors
    plans = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*/plan.json")]
    assert [plan["stress"] for plan in plans] == [True]
    (case,) = [case for case in ended.report["cases"] if CONTROL_OF_STRESS in case["name"]]
    assert (case["verdict"], case["layout"]) == ("caught", {"tp": 1, "dp": 1})
    assert any(note.startswith("stress control: caught: ") for note in ended.report["notes"])


@pytest.mark.parametrize(("settings", "words"), [({"repeat": 1}, "--repeat is 1"), ({"virtual": True}, "virtual")])
def test_a_run_that_stress_cannot_disturb_says_so(settings: dict[str, Any], words: str) -> None:
    plan = plan_for(RunConfig(tp=2, batch=("seed",), device="cpu", stress=True, **settings))
    assert any(words in note for note in plan.notes if "--stress" in note)
    assert not any("--stress" in note for note in plan_for(RunConfig(tp=2, batch=("seed",), device="cpu")).notes)


def test_threads_of_the_op_are_disturbed_too(sleeps: list[float]) -> None:
    seen = []
    with ThreadPoolExecutor(1) as earlier:
        earlier.submit(int).result()  # a worker that was there before
        for run in (1, 1, 2):
            sleeps.clear()
            with other_timing(run, 0, CPU):
                in_threads(some_work)
                earlier.submit(some_work).result()
            seen.append(sorted(sleeps))
        sleeps.clear()
        in_threads(some_work)
        earlier.submit(some_work).result()
    assert sleeps == []
    assert seen[0] == seen[1] != seen[2]
    assert len(seen[0]) > 5


def in_threads(work: Callable[[], object]) -> None:
    """Once in a thread, once in a pool of its own."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def test_a_thread_that_outlives_the_disturbance_is_left_alone(sleeps: list[float]) -> None:
    go = threading.Event()
    with other_timing(1, 0, CPU):
        thread = threading.Thread(target=lambda: (go.wait(), some_work()))
        thread.start()
    sleeps.clear()
    go.set()
    thread.join()
    assert sleeps == []


def test_a_sum_in_order_of_arrival_does_not_repeat_under_stress() -> None:
    spec = BUILT_IN["seed"]
    batch = built_in(spec, 0, contract_for(spec, RunConfig()))
    op = resolve("examples.arrival_order_sum:ArrivalOrderSum", None, batch.contract, "cpu")
    alone = ShardingSpec.even(1, 1, contract=batch.contract)
    run_once = partial(run_candidate, op, batch, alone, Groups())
    drifts = disturbed_repeats(run_once, 4, alone, 0, CPU)
    assert {drift.name for drift in drifts if drift.mismatched} & {"per_sequence_policy", "per_sequence_kl"}
    good = partial(run_candidate, resolve("grpo_loss", None, batch.contract, "cpu"), batch, alone, Groups())
    assert not any(drift.mismatched for drift in disturbed_repeats(good, 4, alone, 0, CPU))


def test_the_control_of_stress_shows_for_almost_any_two_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order in which threads finish is chance; that other orders give other bits must hardly be."""
    draw = random.Random(0)
    monkeypatch.setattr(arrival_order.threading, "Thread", partial(Shuffled, draw))
    alike = pairs = 0
    for seed in range(CONTROL_SEED, CONTROL_SEED + 4):
        batch = drawn(CONTROL, seed)
        totals = [run_layout(batch, 1, 1, op=faulty_op(CONTROL_OF_STRESS)).quantities() for _ in range(16)]
        for one, other in itertools.combinations(totals, 2):
            pairs += 1
            alike += not {"per_sequence_policy", "per_sequence_kl"} & differing(one, other).keys()
    assert pairs == 4 * 120
    assert alike <= 1


class Shuffled:
    """In place of a thread: all of them work when the first is joined, in an order drawn at random."""

    waiting: ClassVar[list[Shuffled]] = []

    def __init__(self, draw: random.Random, target: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.draw, self.work = draw, partial(target, *args)

    def start(self) -> None:
        self.waiting.append(self)

    def join(self) -> None:
        self.draw.shuffle(self.waiting)
        while self.waiting:
            self.waiting.pop().work()


def test_stress_brings_its_control() -> None:
    faults = [case.fault for case in plan_for(RunConfig(tp=2, batch=("seed",), device="cpu", stress=True)).cases]
    assert faults.count(CONTROL_OF_STRESS) == 1
    for more in ({}, {"stress": True, "repeat": 1}, {"stress": True, "virtual": True}):
        cases = plan_for(RunConfig(tp=2, batch=("seed",), device="cpu", **more)).cases
        assert CONTROL_OF_STRESS not in [case.fault for case in cases]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict.MATCH, "stress control: missed: no repeat differs"),
        (Verdict.CAUGHT, "stress control: caught: repeats differ"),
        (None, "stress control: none in this run"),
    ],
)
def test_a_blind_stress_is_told(verdict: Verdict | None, words: str) -> None:
    plan = plan_for(RunConfig(tp=2, batch=("seed",), device="cpu", stress=True))
    planned = next(case for case in plan.cases if case.fault == CONTROL_OF_STRESS)
    fields = {"name": planned.name, "op": "grpo_loss", "layout": {"tp": 1, "dp": 1}, "batch": "control"}
    found = [] if verdict is None else [CaseResult(**fields, expect="caught", verdict=verdict)]
    (note,) = stress_notes(plan, found)
    assert note.startswith(words)
    assert stress_notes(plan.model_copy(update={"stress": False}), found) == []


def test_compiled_code_stays_compiled() -> None:
    """What runs eagerly in the repeats alone may differ in bits, and time would be blamed for it."""
    called = []

    def backend(graph: Any, _inputs: Any) -> Callable[..., Any]:
        def compiled(*tensors: Any) -> Any:
            called.append(1)
            return graph.forward(*tensors)

        return compiled

    work = torch.compile(lambda x: (x * 2).sin(), backend=backend)
    for run in range(3):
        with other_timing(run, 0, CPU):
            work(torch.ones(4))
    assert len(called) == 3
