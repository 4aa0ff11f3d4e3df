"""What must hold exactly: reference equal to policy, and slots that do not count."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from grpo_contract import ShardingSpec
from loss_ops.batch import GlobalBatch
from loss_ops.checked_program import Checks, checked_program
from loss_ops.real_ranks import RealRanks
from loss_ops.stages import NATIVE_STAGES
from loss_ops.virtual_layout import run_layout
from support.batches import drawn, small, small_spec
from support.bits import bits, count_differing, differing

NORMALIZERS: list[dict[str, Any]] = [
    {},
    {"token_normalizer": "per_sequence_then_mean"},
    {"token_normalizer": "fixed_constant", "fixed_constant": 9},
    {"token_normalizer": "length_power", "alpha": 0.5},
]


def observed(batch: GlobalBatch) -> dict[str, torch.Tensor]:
    """What the stages of the 1x1 layout hand on, by name."""
    seen: dict[str, torch.Tensor] = {}
    call = batch.shard(ShardingSpec.even(1, 1, contract=batch.contract))
    checks = Checks("off", preflight=False)
    RealRanks().run(checked_program(call, NATIVE_STAGES, checks, observe=seen.__setitem__))
    return seen


def on_policy(**fields: Any) -> GlobalBatch:
    """Reference equal to policy, and old log-probabilities that are the policy's own."""
    batch = drawn(small_spec(raggedness="staggered"), 8, **fields)
    logp = observed(batch)["logp"]
    return replace(batch, ref_logits=batch.policy_logits.clone(), old_logps=logp)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_reference_equal_to_the_policy(estimator: str, dtype: str) -> None:
    batch = on_policy(kl_estimator=estimator, dtype=dtype)
    seen = observed(batch)
    assert (seen["ratio"] == 1).all()
    assert (seen["kl"] == 0).all()
    for layout in ((1, 1), (2, 3), (4, 2)):
        got = run_layout(batch, *layout).quantities()
        assert bits(got["kl"]).item() == 0
        assert bits(got["per_sequence_kl"]).tolist() == [0] * 6
        assert count_differing(got["loss"], got["policy_loss"]) == 0
        assert got["clip_counts"].tolist()[:3] == [0, 0, 0]


@pytest.mark.parametrize("fields", NORMALIZERS)
def test_on_policy_the_clip_does_not_matter(fields: dict[str, Any]) -> None:
    widths = [(0.0, 0.0), (0.2, 0.28), (1.0, 5.0)]
    plain, *others = (
        run_layout(on_policy(clip_eps_low=low, clip_eps_high=high, **fields), 1, 1).quantities()
        for low, high in widths
    )
    assert plain["grad_policy_logits"].abs().max() > 0
    assert all(differing(plain, other) == {} for other in others)


def test_off_policy_it_does() -> None:
    narrow, wide = (run_layout(small(8, clip_eps=eps), 1, 1).quantities() for eps in (0.1, 0.3))
    assert differing(narrow, wide).keys() >= {"loss", "per_sequence_policy", "clip_counts", "grad_policy_logits"}


# Masked slots

GARBAGE = [math.nan, math.inf, -math.inf, 3e38, -0.0]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("stray", [-100, 21, 2**63 - 1, -(2**63)])
def test_masked_slots_may_hold_anything(garbage: float, stray: int) -> None:
    batch = small(9)
    masked = ~batch.completion_mask
    assert 0 < int(masked.sum()) < masked.numel()
    clean, dirty = (filled(batch, masked, *fill) for fill in ((0.0, 0), (garbage, stray)))
    expected = run_layout(clean, 1, 1).quantities()
    for layout in ((1, 1), (3, 2)):
        got = run_layout(dirty, *layout)
        assert differing(expected, got.quantities()) == {}
    rows = got.gradient[masked]
    assert count_differing(rows, torch.zeros_like(rows)) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_masked_slots_of_narrow_dtypes(dtype: str) -> None:
    batch = small(10, dtype=dtype)
    masked = ~batch.completion_mask
    clean, dirty = (filled(batch, masked, *fill) for fill in ((0.0, 0), (math.nan, -100)))
    assert differing(run_layout(clean, 1, 1).quantities(), run_layout(dirty, 2, 2).quantities()) == {}


def filled(batch: GlobalBatch, masked: torch.Tensor, value: float, action: int) -> GlobalBatch:
    assert batch.ref_logits is not None
    return replace(
        batch,
        policy_logits=batch.policy_logits.masked_fill(masked[..., None], value),
        ref_logits=batch.ref_logits.masked_fill(masked[..., None], value),
        old_logps=batch.old_logps.masked_fill(masked, value),
        action_ids=batch.action_ids.masked_fill(masked, action),
    )


def test_an_active_slot_is_seen() -> None:
    """The masked checks can fail: one active value, a little larger, moves bits."""
    batch = small(9)
    sequence, token = batch.completion_mask.nonzero()[0].tolist()
    nudged = batch.policy_logits.clone()
    nudged[sequence, token, batch.action_ids[sequence, token]] += 2.0**-12
    expected = run_layout(batch, 1, 1).quantities()
    found = differing(expected, run_layout(replace(batch, policy_logits=nudged), 1, 1).quantities())
    assert found["per_sequence_kl"] == 1
    assert found["grad_policy_logits"] > 1


@pytest.mark.parametrize("padding", [math.nan, math.inf, 1e30])
def test_padding_columns_have_no_gradient(padding: float) -> None:
    batch = small(11)
    assert batch.ref_logits is not None
    batch.policy_logits[..., 21:] = padding
    batch.ref_logits[..., 21:] = padding
    clean = run_layout(small(11), 1, 1).quantities()
    got = run_layout(batch, 4, 2)
    assert differing(clean, got.quantities()) == {}
    assert bits(got.gradient[..., 21:]).unique().tolist() == [0]


def test_a_gradient_of_nothing_is_plus_zero() -> None:
    batch = replace(drawn(small_spec(), 13, beta=0.0), rewards=torch.ones(6), ref_logits=None)
    for layout in ((1, 1), (3, 2)):
        got = run_layout(batch, *layout)
        assert bits(got.gradient).unique().tolist() == [0]
        assert bits(got.results[0, 0].loss).item() == 0


def test_beta_zero_reports_the_kl_and_uses_none_of_it() -> None:
    batch = small(12, beta=0.0)
    with_reference = run_layout(batch, 2, 2).quantities()
    without = run_layout(replace(batch, ref_logits=None), 2, 2).quantities()
    assert differing(with_reference, without).keys() == {"kl", "per_sequence_kl"}
    assert with_reference["kl"] > 0
    assert bits(without["kl"]).item() == 0
