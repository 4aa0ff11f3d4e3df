"""Data-parallel training: the same parameters at every degree and micro-batch, and mistakes that show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grpo_contract import GRPOVerifyError, InputError, ShardingError
from harness.workloads.blocks import part_bounds
from harness.workloads.combine import Combine
from harness.workloads.mistakes import Mistake
from harness.workloads.ranks import Place, RealDriver
from harness.workloads.tiny_training import TinyWorkload
from harness.workloads.training import Recipe, Rollout, train
from support.training_runs import Digests, digests_by_rank, tiny

NORMALIZERS = {
    "sequence_mean": {},
    "alpha": {"token_normalizer": "length_power", "alpha": 0.5},
    "token_mean": {"token_normalizer": "global_active_tokens"},
}


@pytest.fixture(scope="module")
def alone() -> Digests:
    return digests_by_rank(tiny(), 1, range(1, 13))[0]


@pytest.mark.parametrize(("degree", "updates"), [(2, 12), (3, 3), (4, 6), (8, 3)])
def test_every_degree_gives_the_same_trajectory(degree: int, updates: int, alone: Digests) -> None:
    assert digests_by_rank(tiny(), degree, range(1, updates + 1)) == [alone[:updates]] * degree


@pytest.mark.parametrize(("degree", "micro_batch"), [(1, 6), (1, 48), (2, 3), (4, 2), (4, 5)])
def test_every_micro_batch_gives_the_same_trajectory(degree: int, micro_batch: int, alone: Digests) -> None:
    found = digests_by_rank(tiny(), degree, [1], Recipe(micro_batch=micro_batch))
    assert found == [alone[:1]] * degree


def test_all_reduce_drifts_and_keeps_ranks_equal(alone: Digests) -> None:
    one, other = digests_by_rank(tiny(), 2, range(1, 3), Recipe(combine=Combine.ALL_REDUCE))
    assert one == other
    assert one[0]["parameters:table"] != alone[0]["parameters:table"]


def table_after(degree: int, recipe: Recipe, **fields: object) -> Tensor:
    held: list[TinyWorkload] = []
    digests_by_rank(tiny(**fields), degree, range(1, 3), recipe, lambda _, workload: held.append(workload))
    return held[-1].table


@pytest.mark.parametrize("mistake", list(Mistake))
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_a_local_mean_is_right_but_for_the_token_mean(normalizer: str, mistake: Mistake) -> None:
    fields = NORMALIZERS[normalizer]
    good = table_after(1, Recipe(), **fields)
    bad = table_after(4, Recipe(mistake=mistake, micro_batch=6), **fields)
    apart = float((good - bad).abs().max())
    assert (apart > 1e-3) if normalizer == "token_mean" else (apart < 1e-6)


class Broken(TinyWorkload):
    """A workload with one thing wrong on one rank."""

    fault, at = "", 0

    def rewards(self, rollout: Rollout, start: int, stop: int) -> Tensor:
        rewards = super().rewards(rollout, start, stop)
        if start <= self.at < stop and self.fault == "nan":
            rewards[self.at - start] = torch.nan
        if start <= self.at < stop and self.fault == "missing":
            rewards = rewards[: self.at - start]
        return rewards

    def logits(self, rollout: Rollout, start: int, stop: int) -> Tensor:
        found = super().logits(rollout, start, stop)
        if start <= self.at < stop and self.fault == "overflow" and self.table.any():
            found[self.at - start, 0] = torch.nan  # from the second pass on
        return found

    def rollout(self, update: int, place: Place):  # type: ignore[no-untyped-def]
        found = yield from super().rollout(update, place)
        if self.fault == "empty":
            found.mask_BT[self.at] = False
        return found


@pytest.mark.parametrize(
    ("fault", "at", "message"),
    [
        ("nan", 30, r"rewards at \[30\]: expected a finite number"),
        ("missing", 45, r"rewards at \[45\]: expected a finite number"),
        ("overflow", 40, r"policy log-probability at \[40, 0\]: expected a finite float32 value"),
        ("empty", 7, "completion_mask at sequence 7: expected at least one token, got none"),
    ],
)
@pytest.mark.parametrize("degree", [1, 2])
def test_validation_names_the_sequence(fault: str, at: int, message: str, degree: int) -> None:
    def make() -> Broken:
        workload = Broken()
        workload.fault, workload.at = fault, at
        return workload

    with pytest.raises(InputError, match=message):
        digests_by_rank(make, degree, range(1, 2))


def test_more_ranks_than_blocks_are_refused() -> None:
    with pytest.raises(ShardingError, match="1 to 48, the number of blocks of 1 sequences, got 49"):
        digests_by_rank(tiny(), 49, range(1, 2))


def test_a_part_is_whole_blocks() -> None:
    assert part_bounds(4, 9, 2, 1) == [(4, 6), (6, 8), (8, 9)]
    assert part_bounds(4, 9, None, 4) == [(4, 9)]
    with pytest.raises(InputError, match="micro_batch: expected a multiple of the block of 4 sequences, got 6"):
        part_bounds(0, 8, 6, 4)


def test_a_real_driver_alone_needs_no_group(alone: Digests) -> None:
    seen: list[float] = []
    program = train(
        tiny()(), range(1, 3), Place(), Recipe(), lambda update: seen.append(float(update.result.loss))
    )
    RealDriver().run(program)
    assert len(seen) == 2


def test_errors_are_of_the_project() -> None:
    assert issubclass(InputError, GRPOVerifyError)
