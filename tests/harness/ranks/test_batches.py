"""Built-in batches and captures as tensors: what a seed fixes, and that there is something to compare."""

from typing import Any

import pytest
import torch

from grpo_contract import GRPOLossContract
from harness.ranks.batches import HOLE_EVERY, built_in, captured
from harness.settings.batch_spec import BUILT_IN, CONTROL, BatchSpec, lengths
from loss_ops.batch import GlobalBatch
from support.batches import SLICE, capture_batch, drawn, oracle_of, spec_contract
from support.bits import count_differing

SMALL = [spec for spec in (*BUILT_IN.values(), CONTROL) if spec.name not in ("wide", "long-4096")]


def tensors(batch: GlobalBatch) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(batch).items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("spec", SMALL, ids=lambda spec: spec.name)
def test_a_seed_fixes_every_bit(spec: BatchSpec) -> None:
    first, again, other = (tensors(drawn(spec, seed)) for seed in (3, 3, 4))
    assert len(first) == 6
    assert all(count_differing(first[name], again[name]) == 0 for name in first)
    moved = {name for name in first if count_differing(first[name], other[name])}
    assert moved >= {"policy_logits", "ref_logits", "action_ids", "old_logps", "rewards"}


@pytest.mark.parametrize("spec", SMALL, ids=lambda spec: spec.name)
def test_the_shape_is_that_of_the_spec(spec: BatchSpec) -> None:
    batch = drawn(spec)
    slots = (spec.num_sequences, spec.padded_seq_len)
    assert batch.policy_logits.shape == (*slots, spec.padded_vocab_size)
    assert batch.ref_logits is not None
    assert batch.ref_logits.shape == batch.policy_logits.shape
    assert batch.action_ids.shape == batch.old_logps.shape == batch.completion_mask.shape == slots
    assert batch.rewards.shape == (spec.num_sequences,)
    active = batch.completion_mask
    assert ((batch.action_ids[active] >= 0) & (batch.action_ids[active] < spec.real_vocab_size)).all()
    assert batch.policy_logits[active].isfinite().all()
    assert batch.old_logps[active].isfinite().all()


@pytest.mark.parametrize("spec", SMALL, ids=lambda spec: spec.name)
def test_the_mask_follows_the_lengths(spec: BatchSpec) -> None:
    mask = drawn(spec, 5).completion_mask
    held = lengths(spec, 5)
    for row, length in zip(mask, held, strict=True):
        holes = spec.raggedness == "ragged"
        expected = [t < length and not (holes and t % HOLE_EVERY == HOLE_EVERY - 1) for t in range(len(row))]
        assert row.tolist() == expected


def test_a_ragged_batch_has_everything_that_goes_wrong() -> None:
    for seed in range(5):
        batch = drawn("ragged", seed)
        counts = batch.completion_mask.sum(1)
        assert (counts == 0).sum() == 1
        assert len(set(counts.tolist())) > 4
        masked = ~batch.completion_mask
        assert batch.policy_logits[masked].isnan().all()
        assert batch.ref_logits is not None
        assert batch.ref_logits[masked].isinf().all()
        assert (batch.action_ids[masked] == -100).all()
        assert batch.old_logps[masked].isnan().all()


def test_the_control_batch_is_all_live() -> None:
    assert drawn(CONTROL).completion_mask.all()


@pytest.mark.parametrize("name", ["seed", "control"])
def test_old_values_spread_around_the_policys_own(name: str) -> None:
    batch = drawn(name)
    ratio = oracle_of(batch).ratio[batch.completion_mask.numpy()]
    assert 0.3 < (ratio > 1).mean() < 0.7
    assert (ratio > 2).mean() > 0.1
    assert (ratio < 0.5).mean() > 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_logits_have_the_dtype_of_the_contract(dtype: str) -> None:
    batch = drawn("seed", 0, dtype=dtype)
    assert batch.policy_logits.dtype == getattr(torch, dtype)
    assert batch.ref_logits is not None
    assert batch.ref_logits.dtype == getattr(torch, dtype)
    # Old values belong to the logits as they are after rounding, so a token's ratio is not biased by it.
    wide = drawn("seed", 0)
    assert (count_differing(batch.old_logps, wide.old_logps) > 0) is (dtype != "float32")


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_old_values_are_at_the_temperature(temperature: float) -> None:
    hot, plain = (drawn("seed", 0, temperature=each) for each in (temperature, 1.0))
    difference = oracle_of(hot).logps - oracle_of(plain).logps
    moved = (hot.old_logps - plain.old_logps).numpy()
    active = hot.completion_mask.numpy()
    assert abs(difference[active] - moved[active]).max() < 1e-5
    assert abs(moved[active]).max() > 0.1


def test_the_wide_batch_has_a_real_vocabulary() -> None:
    spec = BUILT_IN["wide"]
    contract: GRPOLossContract = spec_contract(spec)
    assert (contract.logprob.real_vocab_size, contract.logprob.padded_vocab_size) == (151936, 152064)
    assert contract.logprob.tile_width == 8192
    assert len(built_in(spec, 0, contract).policy_logits) == spec.num_sequences


def test_a_capture_is_what_the_file_holds() -> None:
    expected: Any = capture_batch()
    got = captured(SLICE, expected.contract)
    assert tensors(got).keys() == tensors(expected).keys()
    for name, value in tensors(expected).items():
        assert count_differing(value, tensors(got)[name]) == 0, name
    assert got.policy_logits.dtype == torch.bfloat16
