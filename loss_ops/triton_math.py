"""Device functions of the Triton kernels. Float32; each operation rounds by itself, none is contracted.

They take scalars and blocks alike, so that a value has the same bits whichever kernel computes it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def finite_reference(largest):
    """What exponents are measured from: the maximum, or 0 where there is no finite logit at all."""
    return tl.where(largest == float("-inf"), 0.0, largest)


@triton.jit
def merge_state(max_a, sum_a, max_b, sum_b, inverse_temperature):
    """Join two states (maximum of raw logits, sum of exp((logit - maximum) / temperature)), the left one first."""
    largest = tl.maximum(max_a, max_b)
    reference = finite_reference(largest)
    left = sum_a * tl.exp((max_a - reference) * inverse_temperature)
    right = sum_b * tl.exp((max_b - reference) * inverse_temperature)
    return largest, left + right


@triton.jit
def log_softmax_of(largest, total, selected, inverse_temperature):
    """(logp of the taken token, maximum / temperature, log of the sum)."""
    reference = finite_reference(largest)
    log_sum = tl.log(total)
    return (selected - reference) * inverse_temperature - log_sum, reference * inverse_temperature, log_sum


@triton.jit
def exp_minus_1_minus(d):
    """expm1(d) - d: its series below 1, where the difference of large terms would lose digits."""
    series = 1.0 / 479001600.0
    series = series * d + 1.0 / 39916800.0
    series = series * d + 1.0 / 3628800.0
    series = series * d + 1.0 / 362880.0
    series = series * d + 1.0 / 40320.0
    series = series * d + 1.0 / 5040.0
    series = series * d + 1.0 / 720.0
    series = series * d + 1.0 / 120.0
    series = series * d + 1.0 / 24.0
    series = series * d + 1.0 / 6.0
    series = series * d + 0.5
    return tl.where(tl.abs(d) < 1.0, series * d * d, (tl.exp(d) - 1.0) - d)


@triton.jit
def kl_terms(logp, ref_logp, active, ESTIMATOR: tl.constexpr):
    """(KL, its derivative in logp) by the contract's estimator, 0-distance in masked slots."""
    d = tl.where(active, ref_logp - logp, 0.0)
    if ESTIMATOR == "k1":
        kl, slope = 0.0 - d, d * 0.0 + 1.0
    elif ESTIMATOR == "k2":
        kl, slope = d * d * 0.5, 0.0 - d
    else:
        kl = exp_minus_1_minus(d)
        slope = 0.0 - (kl + d)
    return kl, slope


@triton.jit
def policy_terms(logp, old_logp, advantage, active, low, high):
    """(ratio, negated clipped surrogate, its derivative in logp, low clip binds, high clip binds)."""
    ratio = tl.exp(tl.where(active, logp - old_logp, 0.0))
    clip_low = active & (ratio < low) & (advantage < 0)
    clip_high = active & (ratio > high) & (advantage > 0)
    flat = advantage == 0
    free = ratio * advantage
    bound = tl.minimum(tl.maximum(ratio, low), high) * advantage
    policy = tl.where(flat, 0.0, 0.0 - tl.minimum(free, bound))
    slope = tl.where(flat | clip_low | clip_high, 0.0, 0.0 - free)
    return ratio, policy, slope, clip_low, clip_high


@triton.jit
def is_finite(value):
    """True for a number, False for an infinity or NaN."""
    return tl.abs(value) < float("inf")
