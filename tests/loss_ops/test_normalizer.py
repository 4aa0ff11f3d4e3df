"""Normalizers: scalars and token weights."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_contract import GRPOLossContract
from loss_ops.normalizer import Normalization, normalization
from oracle import grpo
from support.bits import count_differing

LENGTHS = (0, 1, 3, 7, 5, 8, 0, 2)
REDUCTIONS: list[dict[str, Any]] = [
    {},
    {"token_normalizer": "per_sequence_then_mean"},
    {"token_normalizer": "per_sequence_then_mean", "sequence_denominator": "all"},
    {"token_normalizer": "fixed_constant", "fixed_constant": 11.5},
    {"token_normalizer": "length_power", "alpha": 0.0},
    {"token_normalizer": "length_power", "alpha": 0.5},
    {"token_normalizer": "length_power", "alpha": 1.0},
    {"token_normalizer": "length_power", "alpha": 2.5},
]


def normalized(lengths: tuple[int, ...], reduction: dict[str, Any]) -> Normalization:
    contract = GRPOLossContract.for_batch(
        num_sequences=len(lengths),
        padded_seq_len=max(lengths),
        vocab_size=4,
        group_boundaries=(0, len(lengths)),
        **reduction,
    )
    return normalization(torch.tensor(lengths), contract)


def totals(count: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize(
    "reduction", REDUCTIONS, ids=lambda fields: " ".join(map(str, fields.values())) or "default"
)
def test_weights_and_scalars_are_those_of_float64(reduction: dict[str, Any]) -> None:
    settings = grpo.OracleSettings(group_boundaries=(0, 8), **reduction)
    weights = grpo.sequence_weights(np.array(LENGTHS), settings)
    norm = normalized(LENGTHS, reduction)
    # An empty sequence has no token that its weight could reach; the mean over sequences gives it none.
    live = np.array(LENGTHS) > 0
    np.testing.assert_allclose(norm.weight_B.numpy()[live], weights[live], rtol=1e-7)
    held = torch.where(torch.tensor(live), totals(8), 0.0)
    expected = math.fsum((weights * held.double().numpy()).tolist())
    magnitude = math.fsum(np.abs(weights * held.double().numpy()).tolist())
    assert abs(norm.scalar(held).item() - expected) <= 3e-7 * magnitude


@pytest.mark.parametrize("reduction", REDUCTIONS[1:3] + REDUCTIONS[4:])
def test_an_empty_sequence_weighs_exactly_nothing(reduction: dict[str, Any]) -> None:
    norm = normalized(LENGTHS, reduction)
    assert (norm.weight_B[0], norm.weight_B[6]) == (0, 0)
    assert norm.factor_B is not None
    assert (norm.factor_B[0], norm.factor_B[6]) == (0, 0)


def test_length_power_meets_its_limits_bit_for_bit() -> None:
    lengths = (*range(4096), 4096)
    zero = normalized(lengths, {"token_normalizer": "length_power", "alpha": 0.0})
    mean = normalized(lengths, {"token_normalizer": "per_sequence_then_mean", "sequence_denominator": "all"})
    assert count_differing(zero.weight_B, mean.weight_B) == 0
    assert count_differing(zero.scalar(totals(4097)), mean.scalar(totals(4097))) == 0
    one = normalized(lengths, {"token_normalizer": "length_power", "alpha": 1.0})
    assert set(one.weight_B[1:].tolist()) == {torch.tensor(1 / 4097).item()}
    between = normalized(lengths, {"token_normalizer": "length_power", "alpha": 0.5})
    assert count_differing(between.weight_B, mean.weight_B) > 4000


def test_live_and_all_differ_by_the_empty_sequences() -> None:
    live = normalized(LENGTHS, {"token_normalizer": "per_sequence_then_mean"})
    every = normalized(LENGTHS, {"token_normalizer": "per_sequence_then_mean", "sequence_denominator": "all"})
    assert (live.divisor.item(), every.divisor.item()) == (6.0, 8.0)


def test_a_count_beyond_float32_is_divided_exactly() -> None:
    counts = torch.tensor([2**24, 1])
    contract = GRPOLossContract.for_batch(
        num_sequences=2, padded_seq_len=2**24, vocab_size=2, samples_per_prompt=2
    )
    norm = normalization(counts, contract)
    assert norm.weight_B.tolist() == [torch.tensor(1 / (2**24 + 1), dtype=torch.float64).float().item()] * 2


def test_totals_of_minus_zero_give_plus_zero() -> None:
    norm = normalized((1, 1), {})
    assert math.copysign(1, norm.scalar(torch.tensor([-0.0, -0.0])).item()) == 1
