"""Scalars in Triton: the batch's counts, each sequence's token weight, the loss, and the coefficients."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from loss_ops.inputs import LossInputs
from loss_ops.triton_advantages import advantage_of
from loss_ops.triton_kernel import Part, Pointer, launch
from loss_ops.triton_launch import MEMBER_CHUNK, SEQUENCE_CHUNK, SLOT_CHUNK, SMALL
from loss_ops.triton_plan import Plan
from loss_ops.triton_workspace import Workspace


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
        "totals_ptr", "rewards_ptr", "begins_ptr", "ends_ptr", "factors_ptr", "constant_ptr", "softmax_ptr",
        "floats_ptr", "clips_ptr", "coefficient_ptr", "advantages_ptr", "sequences", "own_first", "own_sequences",
        "rows", "length", "scale", "beta", "eps",
    ]
)  # fmt: skip
def scalars_kernel(
    totals_ptr,
    rewards_ptr,
    begins_ptr,
    ends_ptr,
    factors_ptr,
    constant_ptr,
    softmax_ptr,
    floats_ptr,
    clips_ptr,
    coefficient_ptr,
    advantages_ptr,
    sequences,
    own_first,
    own_sequences,
    rows,
    length,
    scale,
    beta,
    eps,
    CHUNK: tl.constexpr,
    SLOTS: tl.constexpr,
    MEMBERS: tl.constexpr,
    KIND: tl.constexpr,
    EPS_MODE: tl.constexpr,
    NORMALIZER: tl.constexpr,
    ALL_SEQUENCES: tl.constexpr,
    UNIFORM: tl.constexpr,
    PENALIZED: tl.constexpr,
):
    """Program b: sequence b's weight, advantage, coefficients; program 0 also the scalars of the batch.

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
    advantage = advantage_of(rewards_ptr, begins_ptr, ends_ptr, sequence, eps, MEMBERS, KIND, EPS_MODE)
    tl.store(advantages_ptr + sequence, advantage)
    own = sequence - own_first
    if (own >= 0) & (own < own_sequences):
        lane = tl.arange(0, SLOTS)
        for first in range(0, length, SLOTS):
            slot = own.to(tl.int64) * length + first + lane
            inside = first + lane < length
            slope = tl.load(softmax_ptr + 3 * rows.to(tl.int64) + slot, mask=inside, other=0.0)
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
        clip_counts(totals_ptr, clips_ptr, tokens, sequences, CHUNK)


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


def launch_counts(inputs: LossInputs, out_S: Part) -> None:
    """[S] int64 active tokens of this rank's sequences."""
    sequences, length = inputs.active_ST.shape
    active = inputs.active_ST.contiguous()
    launch(count_kernel, (sequences, 1), (active, out_S), (length,), (SLOT_CHUNK,), SMALL)


def launch_weights(counts_B: Pointer, plan: Plan, space: Workspace) -> None:
    """[B] float32 token weights, the same bits as `launch_scalars` gives."""
    batch = space.layout.batch
    launch(
        weights_kernel,
        (batch, 1),
        (counts_B, *plan.normalizer_tensors, space.part("weights")),
        (batch,),
        (SEQUENCE_CHUNK, *plan.normalizer_constants),
        SMALL,
    )


def launch_scalars(totals_B7: Pointer, rewards_B: Tensor, plan: Plan, space: Workspace, grad_scale: float) -> None:
    """Scalars and advantages of the batch, coefficients of this rank: slope * weight * (grad_scale / temperature).

    Order: sequences of the batch in order, lanes of a fixed width, one program; equal on every rank.
    """
    layout, objective = space.layout, plan.objective
    launch(
        scalars_kernel,
        (layout.batch, 1),
        (
            totals_B7,
            rewards_B,
            *plan.group_of_sequence,
            *plan.normalizer_tensors,
            space.part("softmax"),
            space.part("scalars"),
            space.part("clips"),
            space.part("coefficient"),
            space.part("advantages"),
        ),
        (
            layout.batch,
            plan.first_sequence,
            layout.own,
            layout.slots,
            plan.contract.geometry.padded_seq_len,
            grad_scale / objective.temperature,
            objective.beta,
            objective.advantage.std_eps,
        ),
        (
            SEQUENCE_CHUNK,
            SLOT_CHUNK,
            MEMBER_CHUNK,
            *plan.advantage_constants,
            *plan.normalizer_constants,
            plan.penalty_constants[0],
        ),
        SMALL,
    )
