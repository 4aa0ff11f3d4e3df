"""The whole GRPO loss in float64 numpy, written from the formulas: the right answer the tests compare with.

Dense and slow on purpose: no tiles, no shards, no torch, nothing shared with the code under test.
Only active tokens are looked at, so a masked slot may hold anything. Every sum is `math.fsum`, which
rounds once: the order of the terms cannot matter, and permuted rows give equal log-probabilities.

Sources: GRPO objective and k3 penalty, Shao et al. 2024 (DeepSeekMath); estimators k1, k2, k3, Schulman 2020
("Approximating KL divergence"); clipped surrogate, Schulman et al. 2017 (PPO); constant divisor and
mean-only advantage, Liu et al. 2025 (Dr. GRPO); token-level mean, higher upper clip, Yu et al. 2025 (DAPO).

Shape suffixes: B sequences, T token slots, V vocabulary columns, N active tokens in (sequence, token) order.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class OracleSettings:
    """What fixes the numbers. Field names are those of the contract and of the case files.

    `advantage`: mean_std_population, mean_std_sample or mean_only. `std_eps_mode`: floor, add or variance.
    `real_vocab_size`: columns from here on are padding; None means that there are none.
    """

    group_boundaries: tuple[int, ...]
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2
    beta: float = 0.04
    kl_estimator: str = "k3"
    token_normalizer: str = "global_active_tokens"
    fixed_constant: float | None = None
    alpha: float | None = None
    sequence_denominator: str = "live"
    advantage: str = "mean_std_population"
    std_eps: float = 1e-6
    std_eps_mode: str = "floor"
    temperature: float = 1.0
    real_vocab_size: int | None = None


@dataclass(frozen=True)
class OracleResult:
    """Everything in float64; per-token arrays hold 0 in masked slots.

    `kl_per_token` and `per_sequence_kl` are without beta and, like `per_sequence_policy`, before any
    normalizer. `grad` is d loss / d policy_logits, with the normalizer and 1 / temperature inside.
    """

    logps: Float
    ratio: Float
    kl_per_token: Float
    loss: float
    policy_loss: float
    kl: float
    per_sequence_policy: Float
    per_sequence_kl: Float
    per_sequence_active_tokens: NDArray[np.int64]
    advantages: Float
    clip_counts: dict[str, int]
    grad: Float


def grpo_oracle(
    policy_logits: Array,
    ref_logits: Array | None,
    action_ids: Array,
    old_logps: Array,
    rewards: Array,
    completion_mask: Array,
    settings: OracleSettings,
) -> OracleResult:
    """Loss, its parts and its gradient for one dense batch: logits [B, T, V], tokens [B, T], rewards [B].

    loss = policy_loss + beta * kl, each the sum over active tokens of weight * term. Without a reference,
    KL is 0 (only right at beta 0). Raises ValueError where no token is active or a group has no spread.
    """
    active = np.asarray(completion_mask).astype(bool)
    if not active.any():
        raise ValueError("no active tokens in the batch")
    if ref_logits is None and settings.beta != 0:
        raise ValueError("beta is not 0 but there is no reference")
    advantages = group_advantages(rewards, settings)
    lengths = active.sum(axis=1)
    sequence_N = np.nonzero(active)[0]
    advantage_N = advantages[sequence_N]
    weight_N = sequence_weights(lengths, settings)[sequence_N]

    action_N = np.asarray(action_ids)[active]
    logp_N, prob_NV = selected_logps(policy_logits[active], action_N, settings)
    ratio_N = np.exp(log_ratio(logp_N, np.asarray(old_logps)[active]))
    kl_N, kl_slope_N = np.zeros_like(logp_N), np.zeros_like(logp_N)
    if ref_logits is not None:
        ref_logp_N, _ = selected_logps(ref_logits[active], action_N, settings)
        kl_N, kl_slope_N = kl_terms(ref_logp_N - logp_N, settings.kl_estimator)
    policy_N, policy_slope_N = surrogate_terms(ratio_N, advantage_N, settings)

    policy_loss = math.fsum(weight_N * policy_N)
    kl = math.fsum(weight_N * kl_N)
    slope_N = weight_N * (policy_slope_N + settings.beta * kl_slope_N) / settings.temperature
    return OracleResult(
        logps=scatter(logp_N, active),
        ratio=scatter(ratio_N, active),
        kl_per_token=scatter(kl_N, active),
        loss=policy_loss + settings.beta * kl,
        policy_loss=policy_loss,
        kl=kl,
        per_sequence_policy=sequence_sums(policy_N, active),
        per_sequence_kl=sequence_sums(kl_N, active),
        per_sequence_active_tokens=lengths.astype(np.int64),
        advantages=advantages,
        clip_counts=count_clips(ratio_N, advantage_N, settings),
        grad=logit_gradient(slope_N, prob_NV, action_N, active, policy_logits.shape[-1]),
    )


def group_advantages(rewards: Array, settings: OracleSettings) -> Float:
    """Per group: x = r - r[first], c = x - mean(x), A = c / scale; exactly 0 where all rewards are equal."""
    reward_B = np.asarray(rewards, dtype=np.float64)
    bounds = settings.group_boundaries
    parts = [_one_group(reward_B[lo:hi], settings) for lo, hi in pairwise(bounds)]
    return np.concatenate(parts)


def _one_group(reward: Float, settings: OracleSettings) -> Float:
    if settings.advantage != "mean_only" and len(reward) < 2:
        raise ValueError("a group of one sequence has no standard deviation")
    if reward.max() == reward.min():
        return np.zeros_like(reward)
    shifted = reward - reward[0]
    centred: Float = shifted - math.fsum(shifted) / len(reward)
    return centred if settings.advantage == "mean_only" else centred / _scale(centred, settings)


def _scale(centred: Float, settings: OracleSettings) -> float:
    """floor: max(std, eps); add: std + eps; variance: sqrt(var + eps). Sample var divides by n - 1."""
    divisor = len(centred) - {"mean_std_population": 0, "mean_std_sample": 1}[settings.advantage]
    variance = math.fsum(centred * centred) / divisor
    return {
        "floor": max(math.sqrt(variance), settings.std_eps),
        "add": math.sqrt(variance) + settings.std_eps,
        "variance": math.sqrt(variance + settings.std_eps),
    }[settings.std_eps_mode]


def sequence_weights(lengths: NDArray[np.integer[Any]], settings: OracleSettings) -> Float:
    """Weight [B] that each active token of a sequence gets; L its active tokens, 0 where L = 0.

    global_active_tokens: 1 / sum(L). per_sequence_then_mean: 1 / (L * D), D = live or all sequences.
    fixed_constant: 1 / constant. length_power: L ** (alpha - 1) / B.
    """
    length_B = lengths.astype(np.float64)
    live = length_B > 0
    safe_B = np.where(live, length_B, 1.0)
    match settings.token_normalizer:
        case "global_active_tokens":
            weight_B = np.full_like(length_B, 1.0 / length_B.sum())
        case "per_sequence_then_mean":
            count = {"live": live.sum(), "all": len(length_B)}[settings.sequence_denominator]
            weight_B = 1.0 / (safe_B * count)
        case "fixed_constant":
            weight_B = np.full_like(length_B, 1.0 / _required(settings.fixed_constant, "fixed_constant"))
        case "length_power":
            weight_B = safe_B ** (_required(settings.alpha, "alpha") - 1.0) / len(length_B)
        case unknown:
            raise ValueError(f"unknown token_normalizer {unknown!r}")
    return np.where(live, weight_B, 0.0)


def _required(value: float | None, name: str) -> float:
    if value is None:
        raise ValueError(f"this token_normalizer needs {name}")
    return value


def selected_logps(logits_NV: Array, action_N: Array, settings: OracleSettings) -> tuple[Float, Float]:
    """logp [N] of the actions and softmax [N, V_real] of logits / temperature; a logit of -inf has p = 0.

    z = x / temperature, m = max(z), S = sum(exp(z - m)): logp = (z[action] - m) - log(S).
    """
    z_NV = np.asarray(logits_NV)[:, : settings.real_vocab_size].astype(np.float64) / settings.temperature
    shifted_NV = z_NV - z_NV.max(axis=1, keepdims=True)
    exp_NV = np.exp(shifted_NV)
    sum_N = np.array([math.fsum(row.tolist()) for row in exp_NV])
    logp_N = shifted_NV[np.arange(len(action_N)), action_N] - np.log(sum_N)
    return logp_N, exp_NV / sum_N[:, None]


def log_ratio(logp_N: Float, old_N: Array) -> Float:
    """logp - old. A float32 old value that is the policy's own, rounded to float32, gives exactly 0.

    Rollouts store float32. Without this, on-policy tokens would fall on one side of a zero-width clip
    by the rounding of the stored value.
    """
    delta_N = logp_N - old_N.astype(np.float64)
    if old_N.dtype == np.float32:
        delta_N[logp_N.astype(np.float32) == old_N] = 0.0
    return delta_N


def kl_terms(d_N: Float, estimator: str) -> tuple[Float, Float]:
    """KL estimate per token and its slope by logp, with d = logp_ref - logp.

    k1 = -d, slope 1. k2 = d * d / 2, slope -d. k3 = exp(d) - 1 - d, slope 1 - exp(d).
    """
    match estimator:
        case "k1":
            return -d_N + 0.0, np.ones_like(d_N)
        case "k2":
            return d_N * d_N / 2.0, -d_N
        case "k3":
            return np.expm1(d_N) - d_N, -np.expm1(d_N)
        case unknown:
            raise ValueError(f"unknown kl_estimator {unknown!r}")


def binding_clips(ratio_N: Float, advantage_N: Float, settings: OracleSettings) -> tuple[Array, Array]:
    """(low, high) masks of the tokens where the clip binds; a ratio on a bound is not clipped."""
    low_N = (advantage_N < 0) & (ratio_N < 1.0 - settings.clip_eps_low)
    high_N = (advantage_N > 0) & (ratio_N > 1.0 + settings.clip_eps_high)
    return low_N, high_N


def surrogate_terms(ratio_N: Float, advantage_N: Float, settings: OracleSettings) -> tuple[Float, Float]:
    """-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A) and its slope by logp: -A * ratio, 0 if clipped."""
    clipped_N = np.clip(ratio_N, 1.0 - settings.clip_eps_low, 1.0 + settings.clip_eps_high)
    term_N = -np.minimum(ratio_N * advantage_N, clipped_N * advantage_N) + 0.0
    low_N, high_N = binding_clips(ratio_N, advantage_N, settings)
    return term_N, np.where(low_N | high_N, 0.0, -advantage_N * ratio_N)


def count_clips(ratio_N: Float, advantage_N: Float, settings: OracleSettings) -> dict[str, int]:
    """Whole numbers: `low`, `high`, `region` = both together, `active` = all active tokens."""
    low, high = (int(mask.sum()) for mask in binding_clips(ratio_N, advantage_N, settings))
    return {"low": low, "high": high, "region": low + high, "active": len(ratio_N)}


def logit_gradient(slope_N: Float, prob_NV: Float, action_N: Array, active: Array, num_columns: int) -> Float:
    """grad[b, t, v] = slope * (1[v == action] - p[v]); exactly +0 in masked slots and padding columns."""
    row_NV = -prob_NV
    row_NV[np.arange(len(action_N)), action_N] += 1.0
    grad = np.zeros((*active.shape, num_columns))
    grad[active, : prob_NV.shape[1]] = slope_N[:, None] * row_NV + 0.0
    return grad


def scatter(value_N: Float, active: Array) -> Float:
    """[N] back to [B, T], with 0 in masked slots."""
    out = np.zeros(active.shape)
    out[active] = value_N
    return out


def sequence_sums(value_N: Float, active: Array) -> Float:
    """[N] to the plain sum over each sequence's active tokens, [B]."""
    return np.array([math.fsum(row) for row in scatter(value_N, active)])
