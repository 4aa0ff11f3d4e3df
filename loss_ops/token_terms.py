"""Token terms: ratio, clipped surrogate, KL, and the derivative of each in the log-probability."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_contract import KLEstimator, ObjectiveSpec


@dataclass(frozen=True)
class TokenTerms:
    """[S, T] each, float32 and boolean; masked slots hold finite numbers that no reduction reads.

    `policy` is the negated clipped surrogate, `kl` the KL estimate, `d_policy` and `d_kl` the derivatives in
    the policy's log-probability. `clip_low` and `clip_high` mark where a clip binds.
    """

    ratio: Tensor
    kl: Tensor
    policy: Tensor
    d_policy: Tensor
    d_kl: Tensor
    clip_low: Tensor
    clip_high: Tensor


def policy_ratio(logp_ST: Tensor, old_logps_ST: Tensor, active_ST: Tensor) -> Tensor:
    """exp(logp - old_logp), masked before the exponential: exactly 1 in masked slots."""
    return torch.where(active_ST, logp_ST - old_logps_ST.float(), 0.0).exp()


def kl_penalty(
    logp_ST: Tensor, ref_logp_ST: Tensor, active_ST: Tensor, estimator: KLEstimator
) -> tuple[Tensor, Tensor]:
    """KL per token and its derivative in logp, with d = ref_logp - logp (0 in masked slots).

    k1 = -d, k2 = d * d / 2, k3 = expm1(d) - d (Schulman; expm1 keeps the digits near d = 0).
    """
    d = torch.where(active_ST, ref_logp_ST - logp_ST, 0.0)
    if estimator is KLEstimator.K1:
        return -d, torch.ones_like(d)
    if estimator is KLEstimator.K2:
        return d * d / 2, -d
    grown = d.expm1()
    return grown - d, -grown


def token_terms(
    logp_ST: Tensor,
    ref_logp_ST: Tensor | None,
    old_logps_ST: Tensor,
    advantages_S: Tensor,
    active_ST: Tensor,
    objective: ObjectiveSpec,
) -> TokenTerms:
    """-min(ratio * A, clamp(ratio) * A) and the KL of each token (PPO, section 3; GRPO, equation 3).

    A clip binds where ratio > 1 + clip_eps_high with A > 0, or ratio < 1 - clip_eps_low with A < 0; there the
    derivative is 0, and on the bound itself the unclipped one is kept. Advantage 0 gives exactly 0.
    """
    ratio = policy_ratio(logp_ST, old_logps_ST, active_ST)
    low, high = 1 - objective.clip_eps_low, 1 + objective.clip_eps_high
    advantage = advantages_S[:, None]
    clip_low = active_ST & (ratio < low) & (advantage < 0)
    clip_high = active_ST & (ratio > high) & (advantage > 0)
    flat = (advantage == 0).expand_as(ratio)
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    slope = torch.where(flat | clip_low | clip_high, 0.0, -(ratio * advantage))
    if ref_logp_ST is None:
        kl = d_kl = torch.zeros_like(ratio)
    else:
        kl, d_kl = kl_penalty(logp_ST, ref_logp_ST, active_ST, objective.kl_estimator)
    return TokenTerms(ratio, kl, torch.where(flat, 0.0, -surrogate), slope, d_kl, clip_low, clip_high)
