"""Sweeps, enlarged batches, seating, and the power of a batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_contract import GRPOLossContract
from harness.inputs.enlarge import enlarged
from harness.planning.plan import make_plan
from harness.planning.seating import Seating, seat
from harness.planning.sweep import swept
from harness.ranks.batches import built_in
from harness.ranks.power import measure_power
from harness.settings.batch_spec import BUILT_IN, contract_for
from harness.settings.devices import Machine
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig
from loss_ops.virtual_layout import run_layout

SEED = BUILT_IN["seed"]


def test_a_sweep_multiplies_the_batch() -> None:
    names = [spec.name for spec in swept(SEED, ("seq_len=32,96", "groups=aligned"))]
    assert names == ["seed[seq_len=32,groups=aligned]", "seed[seq_len=96,groups=aligned]"]
    assert swept(SEED, ()) == (SEED,)
    assert len(swept(SEED, ("default",))) == 5 * 2 * 2


def test_groups_straddle_or_are_aligned_with_even_shards() -> None:
    aligned, straddling = swept(SEED, ("groups=aligned,straddle",))
    assert aligned.group_boundaries == (0, 4, 8)
    assert straddling.group_boundaries == (0, 3, 8)


@given(st.integers(1, 40), st.sampled_from(["aligned", "straddle"]))
def test_swept_groups_always_make_a_contract(count: int, groups: str) -> None:
    spec = SEED.model_copy(update={"num_sequences": count})
    (moved,) = swept(spec, (f"groups={groups}",))
    fields = {"num_sequences": count, "padded_seq_len": 4, "vocab_size": 8, "advantage": "mean_only"}
    contract = GRPOLossContract.for_batch(group_boundaries=moved.group_boundaries, **fields)
    assert count == 1 or all(stop - start > 1 for start, stop in contract.geometry.groups)


@pytest.mark.parametrize("text", ["seq_len", "seq_len=0", "seq_len=a", "groups=odd", "vocab=3", "=", ""])
def test_a_sweep_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="--sweep: expected default, seq_len=N"):
        RunConfig(sweep=(text,))


def test_a_sweep_without_a_batch_moves_the_small_one() -> None:
    plan = make_plan(RunConfig(sweep=("seq_len=64",)), device="cpu", available_ranks=None, faults=())
    assert list(plan.batches) == ["small[seq_len=64]"]
    assert plan.batches["small[seq_len=64]"].contract.geometry.padded_seq_len == 64


@given(st.integers(1, 64), st.integers(1, 300))
def test_an_enlarged_batch_has_room_for_every_rank(tp: int, dp: int) -> None:
    spec, note = enlarged(SEED, tp, dp)
    contract = contract_for(spec, RunConfig())
    assert contract.logprob.num_vocab_tiles >= tp
    assert contract.geometry.num_sequences >= dp
    assert contract.logprob.tile_width == contract_for(SEED, RunConfig()).logprob.tile_width
    assert (note is None) == (spec == SEED)


def test_a_virtual_plan_takes_one_process_and_says_what_it_enlarged() -> None:
    config = RunConfig(virtual=True, layouts=("1x1", "2x16"), batch=("seed",), controls="off")
    plan = make_plan(config, device="cpu", available_ranks=None, faults=(), transport="virtual")
    assert (plan.ranks, [case.layout for case in plan.cases]) == (1, [(1, 1), (2, 16)])
    assert plan.batches["seed"].notes[0].startswith("batch seed enlarged to 16 sequences")


def test_virtual_layouts_have_a_largest() -> None:
    config = RunConfig(virtual=True, tp=128)
    with pytest.raises(RequestError, match="virtual layouts up to 64x512, got 128x1"):
        make_plan(config, device="cpu", available_ranks=None, faults=())


ONE, TWO = Machine(8, 1, True), Machine(8, 2, True)


@pytest.mark.parametrize(
    ("settings", "machine", "expected"),
    [
        ({}, Machine(8, 0, False), Seating("cpu", "gloo", 1, None)),
        ({}, ONE, Seating("cuda", "gloo-shared-gpu", 4, 4)),
        ({}, TWO, Seating("cuda", "nccl", 1, 2)),
        ({"tp": 2}, TWO, Seating("cuda", "nccl", 1, 2)),
        ({"tp": 2, "dp": 2}, TWO, Seating("cuda", "gloo-shared-gpu", 2, 4)),
        ({"layouts": ("4x1", "3x3")}, TWO, Seating("cuda", "gloo-shared-gpu", 5, 10)),
        ({"ranks_per_device": 3}, TWO, Seating("cuda", "gloo-shared-gpu", 3, 6)),
        ({"virtual": True}, ONE, Seating("cuda", "virtual", 1, None)),
        ({"tp": 1}, ONE, Seating("cuda", "nccl", 1, 1)),
    ],
)
def test_where_ranks_sit(settings: dict[str, object], machine: Machine, expected: Seating) -> None:
    assert seat(RunConfig(**settings), machine) == expected


def test_power_is_a_share_and_zero_where_nothing_can_move() -> None:
    contract = contract_for(SEED, RunConfig())
    batch = built_in(SEED, 0, contract)
    power = measure_power(batch)
    assert power["per_sequence_policy"] == 1.0
    assert all(0 <= share <= 1 for share in power.values())
    silent = batch.__class__(**{**vars(batch), "rewards": torch.ones_like(batch.rewards)})
    assert measure_power(silent)["advantages"] == measure_power(silent)["per_sequence_policy"] == 0.0


def test_measuring_power_changes_no_bit_of_the_batch() -> None:
    batch = built_in(SEED, 0, contract_for(SEED, RunConfig()))
    before = run_layout(batch, 1, 1).quantities()
    measure_power(batch)
    after = run_layout(batch, 1, 1).quantities()
    assert all(torch.equal(before[name], after[name]) for name in before)
