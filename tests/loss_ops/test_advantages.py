"""Advantages: every mode against float64, and what plain float32 would get wrong."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_contract import AdvantageSpec
from loss_ops import advantages
from oracle import grpo
from support.bits import bits, count_differing

KINDS = ("mean_std_population", "mean_std_sample", "mean_only")
MODES = ("floor", "add", "variance")
GROUPS = (0, 3, 8, 10, 17)


def computed(rewards: Tensor, boundaries: tuple[int, ...] = (), **fields: object) -> Tensor:
    return advantages.group_advantages(rewards, boundaries or (0, len(rewards)), AdvantageSpec(**fields))


@pytest.mark.parametrize(("kind", "mode"), list(itertools.product(KINDS, MODES)))
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_every_mode_is_that_of_float64(kind: str, mode: str, eps: float) -> None:
    rewards = torch.randn(17, generator=torch.Generator().manual_seed(1))
    settings = grpo.OracleSettings(group_boundaries=GROUPS, advantage=kind, std_eps=eps, std_eps_mode=mode)
    expected = grpo.group_advantages(rewards.numpy(), settings)
    got = computed(rewards, GROUPS, kind=kind, std_eps=eps, std_eps_mode=mode)
    np.testing.assert_allclose(got.numpy(), expected, rtol=2e-6, atol=5e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reward", [0.7, 100.1, -3.3, 1e8, 1e17, 0.0])
@pytest.mark.parametrize("size", [2, 7, 8])
def test_equal_rewards_give_exactly_plus_zero(kind: str, reward: float, size: int) -> None:
    got = computed(torch.full((size,), reward), kind=kind)
    assert bits(got).tolist() == [0] * size


def test_plain_float32_would_not() -> None:
    """Why the first reward is subtracted: without it equal rewards get an advantage of about 1."""
    rewards = torch.full((7,), 100.1)
    centred = rewards - rewards.mean()
    plain = centred / centred.square().mean().sqrt().clamp_min(1e-6)
    assert plain.abs().max() > 0.5


def test_large_rewards_keep_their_differences() -> None:
    assert computed(torch.tensor([1e8, 1e8 + 8])).tolist() == [-1.0, 1.0]
    largest = computed(torch.tensor([1e17, -1e17, 1e17, -1e17]))
    assert largest.tolist() == [1.0, -1.0, 1.0, -1.0]


def test_a_group_of_one_has_mean_only_advantage_zero() -> None:
    assert computed(torch.tensor([3.0, 1.0, 2.0]), (0, 1, 3), kind="mean_only").tolist() == [0.0, -0.5, 0.5]


def test_a_group_does_not_see_the_others() -> None:
    rewards = torch.randn(17, generator=torch.Generator().manual_seed(2))
    whole = computed(rewards, GROUPS)
    for start, stop in itertools.pairwise(GROUPS):
        assert count_differing(whole[start:stop], computed(rewards[start:stop])) == 0


def test_groups_cut_elsewhere_are_seen() -> None:
    rewards = torch.randn(17, generator=torch.Generator().manual_seed(3))
    assert count_differing(computed(rewards, GROUPS), computed(rewards, (0, 4, 8, 10, 17))) == 8


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8])
def test_rewards_of_any_dtype(dtype: torch.dtype) -> None:
    rewards = torch.tensor([0, 1, 1, 2]).to(dtype)
    assert computed(rewards).tolist() == pytest.approx([-math.sqrt(2), 0, 0, math.sqrt(2)], rel=1e-6)
    assert computed(rewards).dtype == torch.float32
