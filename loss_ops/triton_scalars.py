"""Scalars in Triton: the batch's counts, each sequence's token weight, the loss, and the coefficients."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from grpo_contract import TokenNormalizer
from loss_ops.inputs import LossInputs
from loss_ops.triton_launch import SEQUENCE_CHUNK, SLOT_CHUNK, SMALL
from loss_ops.triton_plan import Plan


@triton.jit
def count_batch(counts_ptr, sequences, STRIDE: tl.constexpr, CHUNK: tl.constexpr):
    """(active tokens, sequences with an active token) of the batch; integers, so that no order matters."""
    lane = tl.arange(0, CHUNK)
    tokens = tl.zeros([CHUNK], tl.int64)
    live = tl.zeros([CHUNK], tl.int64)
    for first in range(0, sequences, CHUNK):
        sequence = first + lane
        count = tl.load(counts_ptr + sequence * STRIDE, mask=sequence < sequences, other=0)
        tokens += count
        live += (count > 0).to(tl.int64)
    return tl.sum(tokens, 0), tl.sum(live, 0)


@triton.jit
def divisor_of(tokens, live, sequences, constant, NORMALIZER: tl.constexpr, ALL_SEQUENCES: tl.constexpr):
    """float64 divisor of the batch's sum under the contract's normalizer."""
    if NORMALIZER == "global_active_tokens":
        divisor = tokens.to(tl.float64)
    elif NORMALIZER == "fixed_constant":
        divisor = constant
    elif NORMALIZER == "per_sequence_then_mean" and not ALL_SEQUENCES:
        divisor = live.to(tl.float64)
    else:
        divisor = sequences.to(tl.float64)
    return divisor


@triton.jit
def weight_of(count, divisor, factors_ptr, UNIFORM: tl.constexpr):
    """float32 weight of a token of a sequence with `count` active tokens, rounded once from float64."""
    factor = 1.0 if UNIFORM else tl.load(factors_ptr + count)
    return (factor / divisor).to(tl.float32)


@triton.jit
def batch_sum(
    totals_ptr, factors_ptr, sequences, COLUMN: tl.constexpr, UNIFORM: tl.constexpr, CHUNK: tl.constexpr
):
    """Sum of (factor times) a column of float bits over the batch: lane j adds j, j + CHUNK, ..., then lanes."""
    lane = tl.arange(0, CHUNK)
    total = tl.zeros([CHUNK], tl.float32)
    for first in range(0, sequences, CHUNK):
        sequence = first + lane
        inside = sequence < sequences
        bits = tl.load(totals_ptr + sequence * 7 + COLUMN, mask=inside, other=0)
        value = bits.to(tl.int32).to(tl.float32, bitcast=True)
        if not UNIFORM:
            count = tl.load(totals_ptr + sequence * 7 + 2, mask=inside, other=0)
            value = value * tl.load(factors_ptr + count).to(tl.float32)
        total += value + 0.0
    return tl.sum(total, 0)


@triton.jit
def clip_counts(totals_ptr, out_ptr, tokens, sequences, CHUNK: tl.constexpr):
    """Batch counts [4]: low, high, low + high, active."""
    lane = tl.arange(0, CHUNK)
    low = tl.zeros([CHUNK], tl.int64)
    high = tl.zeros([CHUNK], tl.int64)
    for first in range(0, sequences, CHUNK):
        sequence = first + lane
        inside = sequence < sequences
        low += tl.load(totals_ptr + sequence * 7 + 3, mask=inside, other=0)
        high += tl.load(totals_ptr + sequence * 7 + 4, mask=inside, other=0)
    all_low = tl.sum(low, 0)
    all_high = tl.sum(high, 0)
    tl.store(out_ptr, all_low)
    tl.store(out_ptr + 1, all_high)
    tl.store(out_ptr + 2, all_low + all_high)
    tl.store(out_ptr + 3, tokens)


@triton.jit(
    do_not_specialize=[
        "totals_ptr", "factors_ptr", "constant_ptr", "slots_ptr", "floats_ptr", "counts_ptr", "coefficient_ptr",
        "sequences", "own_first", "own_sequences", "rows", "length", "scale", "beta",
    ]
)  # fmt: skip
def scalars_kernel(
    totals_ptr,
    factors_ptr,
    constant_ptr,
    slots_ptr,
    floats_ptr,
    counts_ptr,
    coefficient_ptr,
    sequences,
    own_first,
    own_sequences,
    rows,
    length,
    scale,
    beta,
    CHUNK: tl.constexpr,
    SLOTS: tl.constexpr,
    NORMALIZER: tl.constexpr,
    ALL_SEQUENCES: tl.constexpr,
    UNIFORM: tl.constexpr,
    PENALIZED: tl.constexpr,
):
    """Program b: sequence b's weight and its slots' coefficients; program 0 also the scalars of the batch.

    floats: [3 + 3 B] = loss, policy_loss, kl, then policy totals, kl totals and weights by sequence.
    """
    sequence = tl.program_id(0)
    tokens, live = count_batch(totals_ptr + 2, sequences, 7, CHUNK)
    divisor = divisor_of(tokens, live, sequences, tl.load(constant_ptr), NORMALIZER, ALL_SEQUENCES)
    count = tl.load(totals_ptr + sequence * 7 + 2)
    weight = weight_of(count, divisor, factors_ptr, UNIFORM)
    for column in tl.static_range(2):
        bits = tl.load(totals_ptr + sequence * 7 + column)
        tl.store(floats_ptr + 3 + column * sequences + sequence, bits.to(tl.int32).to(tl.float32, bitcast=True))
    tl.store(floats_ptr + 3 + 2 * sequences + sequence, weight)
    own = sequence - own_first
    if (own >= 0) & (own < own_sequences):
        lane = tl.arange(0, SLOTS)
        for first in range(0, length, SLOTS):
            slot = own.to(tl.int64) * length + first + lane
            inside = first + lane < length
            slope = tl.load(slots_ptr + 3 * rows.to(tl.int64) + slot, mask=inside, other=0.0)
            tl.store(coefficient_ptr + slot, slope * weight * scale, mask=inside)
    if sequence == 0:
        by = divisor.to(tl.float32)
        policy_loss = tl.div_rn(batch_sum(totals_ptr, factors_ptr, sequences, 0, UNIFORM, CHUNK), by)
        kl = tl.div_rn(batch_sum(totals_ptr, factors_ptr, sequences, 1, UNIFORM, CHUNK), by)
        loss = policy_loss
        if PENALIZED:
            loss = policy_loss + beta * kl
        tl.store(floats_ptr, loss)
        tl.store(floats_ptr + 1, policy_loss)
        tl.store(floats_ptr + 2, kl)
        clip_counts(totals_ptr, counts_ptr, tokens, sequences, CHUNK)


@triton.jit(do_not_specialize=["active_ptr", "counts_ptr", "length"])
def count_kernel(active_ptr, counts_ptr, length, SLOTS: tl.constexpr):
    """Active tokens of one sequence."""
    sequence = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, SLOTS)
    count = tl.zeros([SLOTS], tl.int64)
    for first in range(0, length, SLOTS):
        inside = first + lane < length
        active = tl.load(active_ptr + sequence * length + first + lane, mask=inside, other=0) != 0
        count += (inside & active).to(tl.int64)
    tl.store(counts_ptr + sequence, tl.sum(count, 0))


@triton.jit(do_not_specialize=["counts_ptr", "factors_ptr", "constant_ptr", "weights_ptr", "sequences"])
def weights_kernel(
    counts_ptr,
    factors_ptr,
    constant_ptr,
    weights_ptr,
    sequences,
    CHUNK: tl.constexpr,
    NORMALIZER: tl.constexpr,
    ALL_SEQUENCES: tl.constexpr,
    UNIFORM: tl.constexpr,
):
    """Weight of a sequence from the batch's counts alone: what a gradient inside the forward needs early."""
    sequence = tl.program_id(0)
    tokens, live = count_batch(counts_ptr, sequences, 1, CHUNK)
    divisor = divisor_of(tokens, live, sequences, tl.load(constant_ptr), NORMALIZER, ALL_SEQUENCES)
    weight = weight_of(tl.load(counts_ptr + sequence), divisor, factors_ptr, UNIFORM)
    tl.store(weights_ptr + sequence, weight)


@dataclass(frozen=True)
class BatchScalars:
    """`floats`: loss, policy_loss, kl, then [B] each of policy totals, kl totals, weights. `counts_4`: clips."""

    floats: Tensor
    counts_4: Tensor
    coefficient_N: Tensor

    def by_sequence(self, index: int) -> Tensor:
        """[B] policy totals (0), kl totals (1) or weights (2)."""
        sequences = (self.floats.shape[0] - 3) // 3
        return self.floats.narrow(0, 3 + index * sequences, sequences)


def launch_counts(inputs: LossInputs) -> Tensor:
    """[S] int64 active tokens of this rank's sequences."""
    sequences, length = inputs.active_ST.shape
    counts = torch.empty(sequences, dtype=torch.int64, device=inputs.active_ST.device)
    count_kernel[(sequences,)](inputs.active_ST.contiguous(), counts, length, SLOTS=SLOT_CHUNK, **SMALL)
    return counts


def launch_weights(counts_B: Tensor, plan: Plan) -> Tensor:
    """[B] float32 token weights, the same bits as `launch_scalars` gives."""
    weights = torch.empty(counts_B.shape, dtype=torch.float32, device=counts_B.device)
    weights_kernel[(counts_B.shape[0],)](
        counts_B, *_factor_tensors(plan), weights, counts_B.shape[0],
        CHUNK=SEQUENCE_CHUNK, **_normalizer(plan), **SMALL,
    )  # fmt: skip
    return weights


def launch_scalars(
    totals_B7: Tensor, slots_4N: Tensor, inputs: LossInputs, plan: Plan, grad_scale: float
) -> BatchScalars:
    """Scalars of the batch and coefficients of this rank: slope * weight * (grad_scale / temperature).

    Order: sequences of the batch in order, lanes of a fixed width, one program; equal on every rank.
    """
    batch, (own, length) = totals_B7.shape[0], inputs.active_ST.shape
    device = totals_B7.device
    floats = torch.empty(3 + 3 * batch, dtype=torch.float32, device=device)
    counts = torch.empty(4, dtype=torch.int64, device=device)
    coefficient = torch.empty(own * length, dtype=torch.float32, device=device)
    scalars_kernel[(batch,)](
        totals_B7,
        *_factor_tensors(plan),
        slots_4N,
        floats,
        counts,
        coefficient,
        batch,
        plan.first_sequence,
        own,
        slots_4N.shape[1],
        length,
        grad_scale / plan.objective.temperature,
        plan.objective.beta,
        CHUNK=SEQUENCE_CHUNK,
        SLOTS=SLOT_CHUNK,
        PENALIZED=plan.objective.beta != 0,
        **_normalizer(plan),
        **SMALL,
    )
    return BatchScalars(floats, counts, coefficient)


def _factor_tensors(plan: Plan) -> tuple[Tensor, Tensor]:
    factors = plan.token_factors
    return (plan.constant if factors is None else factors), plan.constant


def _normalizer(plan: Plan) -> dict[str, object]:
    reduction = plan.contract.reduction
    return {
        "NORMALIZER": TokenNormalizer(reduction.token_normalizer).value,
        "ALL_SEQUENCES": reduction.counts_all_sequences,
        "UNIFORM": plan.token_factors is None,
    }
