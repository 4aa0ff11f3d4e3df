"""Token terms: ratio, clip and KL, each with its derivative."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_contract import KLEstimator, ObjectiveSpec
from loss_ops.token_terms import TokenTerms, kl_penalty, policy_ratio, token_terms
from oracle import grpo
from support.bits import bits

ESTIMATORS = ("k1", "k2", "k3")


def terms_of(
    logp: Tensor, old: Tensor, advantage: float, ref: Tensor | None = None, **fields: object
) -> TokenTerms:
    """Terms of one sequence whose tokens are all active."""
    active = torch.ones(1, len(logp), dtype=torch.bool)
    reference = None if ref is None else ref[None]
    objective = ObjectiveSpec(**{"beta": 0.0} | fields)
    return token_terms(logp[None], reference, old[None], torch.tensor([advantage]), active, objective)


def drawn(count: int = 400) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(7)
    logp = -3 * torch.rand(count, generator=draw)
    return logp, logp + torch.randn(count, generator=draw), logp + torch.randn(count, generator=draw)


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.1, 0.28), (0.0, 0.0), (1.0, 3.0)])
@pytest.mark.parametrize("advantage", [-1.7, 0.0, 0.6])
def test_surrogate_and_slope_are_those_of_float64(low: float, high: float, advantage: float) -> None:
    logp, old, _ = drawn()
    settings = grpo.OracleSettings(group_boundaries=(0, 1), clip_eps_low=low, clip_eps_high=high)
    ratio = np.exp(grpo.log_ratio(logp.double().numpy(), old.numpy()))
    policy, slope = grpo.surrogate_terms(ratio, np.full(len(logp), advantage), settings)
    got = terms_of(logp, old, advantage, clip_eps_low=low, clip_eps_high=high)
    np.testing.assert_allclose(got.ratio[0].numpy(), ratio, rtol=1e-6)
    np.testing.assert_allclose(got.policy[0].numpy(), policy, rtol=1e-6)
    np.testing.assert_allclose(got.d_policy[0].numpy(), slope, rtol=1e-6)
    counts = grpo.count_clips(ratio, np.full(len(logp), advantage), settings)
    assert (int(got.clip_low.sum()), int(got.clip_high.sum())) == (counts["low"], counts["high"])


@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_on_the_bound_nothing_is_clipped(advantage: float) -> None:
    same = torch.tensor([-0.5, -2.25])
    got = terms_of(same, same, advantage, clip_eps_low=0, clip_eps_high=0)
    assert got.ratio.tolist() == [[1.0, 1.0]]
    assert got.d_policy.tolist() == [[-advantage, -advantage]]
    assert not (got.clip_low | got.clip_high).any()
    step = torch.tensor([2.0**-12, -(2.0**-12)])
    near = terms_of(same + step, same, advantage, clip_eps_low=0, clip_eps_high=0)
    clipped = [advantage > 0, advantage < 0]
    assert (near.clip_low | near.clip_high)[0].tolist() == clipped
    assert (near.d_policy[0] == 0).tolist() == clipped


def test_a_clip_against_the_advantage_does_not_bind() -> None:
    old = torch.zeros(2)
    logp = torch.tensor([1.0, -1.0])  # ratio e and 1 / e
    up, down = terms_of(logp, old, 1.0), terms_of(logp, old, -1.0)
    assert (up.clip_high.tolist(), up.clip_low.tolist()) == ([[True, False]], [[False, False]])
    assert (down.clip_high.tolist(), down.clip_low.tolist()) == ([[False, False]], [[False, True]])
    assert up.policy[0].tolist() == pytest.approx([-1.2, -math.exp(-1)], rel=1e-6)
    assert down.policy[0].tolist() == pytest.approx([math.e, 0.8], rel=1e-6)


def test_advantage_zero_gives_exactly_zero() -> None:
    got = terms_of(torch.tensor([80.0, -80.0, 0.0]), torch.zeros(3), 0.0)
    assert bits(got.policy).tolist() == bits(got.d_policy).tolist() == [[0, 0, 0]]
    assert not (got.clip_low | got.clip_high).any()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_is_that_of_float64(estimator: str) -> None:
    logp, _, ref = drawn()
    kl, slope = grpo.kl_terms((ref - logp).double().numpy(), estimator)
    got = terms_of(logp, logp, 1.0, ref, kl_estimator=estimator)
    np.testing.assert_allclose(got.kl[0].numpy(), kl, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(got.d_kl[0].numpy(), slope, rtol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_slope_is_the_derivative(estimator: str) -> None:
    logp, _, ref = (each.double().requires_grad_() for each in drawn(50))
    active = torch.ones(50, dtype=torch.bool)
    kl, slope = kl_penalty(logp, ref.detach(), active, KLEstimator(estimator))
    (derived,) = torch.autograd.grad(kl.sum(), logp)
    torch.testing.assert_close(slope.detach(), derived, rtol=1e-12, atol=1e-14)


def test_k3_keeps_its_digits_near_zero() -> None:
    d = torch.tensor([1e-3, -1e-4, 3e-5])
    active = torch.ones(3, dtype=torch.bool)
    kl, _ = kl_penalty(torch.zeros(3), d, active, KLEstimator.K3)
    exact = torch.expm1(d.double()) - d.double()
    assert ((kl - exact).abs() <= 1.2e-7 * d.abs()).all()
    assert ((d.exp() - d - 1) - exact).abs().max() > 1e-8  # the textbook form


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e38])
def test_masked_slots_are_masked_before_the_exponential(estimator: str, garbage: float) -> None:
    active = torch.tensor([[True, False]])
    logp, dirty = torch.tensor([[-1.0, garbage]]), torch.tensor([[-0.5, garbage]])
    objective = ObjectiveSpec(kl_estimator=estimator)
    got = token_terms(logp, dirty, dirty, torch.tensor([1.0]), active, objective)
    assert all(bool(value.isfinite().all()) for value in vars(got).values())
    assert got.ratio[0, 1] == 1
    assert got.kl[0, 1] == 0
    assert not got.clip_low[0, 1] | got.clip_high[0, 1]
    assert policy_ratio(logp, -dirty, active)[0, 1] == 1


def test_masked_slots_stay_out_of_plain_autograd() -> None:
    """Masked after the exponential, a NaN or an overflow would come back through its derivative."""
    active = torch.tensor([True, False, False])
    logp = torch.tensor([-1.0, math.nan, 200.0], requires_grad=True)
    ratio = policy_ratio(logp, torch.zeros(3), active)
    kl, _ = kl_penalty(logp, torch.tensor([-2.0, math.nan, 400.0]), active, KLEstimator.K3)
    (gradient,) = torch.autograd.grad((ratio + kl).sum(), logp)
    assert gradient[0].isfinite()
    assert gradient[1:].tolist() == [0.0, 0.0]


def test_without_a_reference_there_is_no_kl() -> None:
    got = terms_of(torch.tensor([-1.0]), torch.tensor([-1.0]), 1.0)
    assert bits(got.kl).tolist() == bits(got.d_kl).tolist() == [[0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_old_values_are_widened_to_float32(dtype: torch.dtype) -> None:
    logp, old = torch.tensor([-1.0, -2.0]), torch.tensor([-1.25, -2.5])  # exact in every dtype
    assert terms_of(logp, old.to(dtype), 1.0).ratio.tolist() == terms_of(logp, old, 1.0).ratio.tolist()


def test_estimators_differ() -> None:
    logp, _, ref = drawn(20)
    kls = [terms_of(logp, logp, 1.0, ref, kl_estimator=name).kl for name in ESTIMATORS]
    assert all(not torch.allclose(one, other) for one, other in itertools.combinations(kls, 2))
