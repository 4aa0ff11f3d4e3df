"""The one-kernel path: a program reads its row's logits, forms the token's coefficient and writes the gradient.

For one vocabulary shard (TP degree 1). Every value comes from the device functions and the launch configuration
of the split path, so the bits are the same; the row is read again while the cache may still hold part of it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from loss_ops.inputs import LossInputs
from loss_ops.triton_gradient import write_gradient_block
from loss_ops.triton_held_launch import holds, launch_held_row
from loss_ops.triton_kernel import launch
from loss_ops.triton_launch import block_of, is_aligned, tile_options, unit_columns
from loss_ops.triton_math import kl_terms, log_softmax_of, policy_terms
from loss_ops.triton_plan import Plan
from loss_ops.triton_tiles import row_state, selected_logit
from loss_ops.triton_workspace import Workspace

# Cache hints, which change no bit: policy rows are wanted again, everything else is not.
KEEP, DROP = "evict_last", "evict_first"
# Columns that a warp writes at a time; the gradient is element-wise, so this changes no bit either.
WRITE_PER_WARP = 512


@triton.jit
def whole_row_state(
    logits_ptr, stride, row, rows, action, states_ptr, lane, stop, tiles, inverse_temperature, never,
    TILE: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr, TEMPERED: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """Store and return (max, sum, selected) of one row, tiles joined in order."""
    row_ptr = logits_ptr + row * stride.to(tl.int64)
    if ALIGNED:
        row_ptr = tl.multiple_of(row_ptr, 16)
    largest, total = row_state(
        row_ptr, lane, stop, tiles, inverse_temperature, never, states_ptr, states_ptr, rows,
        TILE, BLOCK, ALIGNED, TEMPERED, True, EVICTION,
    )  # fmt: skip
    selected = selected_logit(row_ptr, action, stop)
    tl.store(states_ptr + row, largest)
    tl.store(states_ptr + rows + row, total)
    tl.store(states_ptr + 2 * rows + row, selected)
    return largest, total, selected


@triton.jit(
    do_not_specialize=[
        "policy_ptr", "reference_ptr", "gradient_ptr", "actions_ptr", "active_ptr", "old_ptr", "advantages_ptr",
        "weights_ptr", "states_ptr", "policy_stride", "reference_stride", "gradient_stride", "rows", "length",
        "first_sequence", "stop", "columns", "tiles", "inverse_temperature", "low", "high", "beta", "scale",
        "never",
    ]
)  # fmt: skip
def one_kernel(
    policy_ptr,
    reference_ptr,
    gradient_ptr,
    actions_ptr,
    active_ptr,
    old_ptr,
    advantages_ptr,
    weights_ptr,
    states_ptr,
    policy_stride,
    reference_stride,
    gradient_stride,
    rows,
    length,
    first_sequence,
    stop,
    columns,
    tiles,
    inverse_temperature,
    low,
    high,
    beta,
    scale,
    never,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    WRITE: tl.constexpr,
    ALIGNED: tl.constexpr,
    TEMPERED: tl.constexpr,
    REFERENCE: tl.constexpr,
    PENALIZED: tl.constexpr,
    ESTIMATOR: tl.constexpr,
    KEEP: tl.constexpr,
    DROP: tl.constexpr,
):
    """States of row program_id(0) into `states` [models * 3, N], its gradient into `gradient` [N, columns].

    The reference is read first and the policy's tiles are met again from the last to the first: what was read
    latest is the likeliest to be in the cache. `gradient` may be the policy logits themselves.
    """
    row = tl.program_id(0).to(tl.int64)
    rows = rows.to(tl.int64)
    sequence = first_sequence + row // length
    lane = tl.arange(0, BLOCK)
    coefficient = 0.0
    scaled_max = 0.0
    log_sum = 0.0
    action = tl.load(actions_ptr + row).to(tl.int64)
    active = tl.load(active_ptr + row) != 0
    if active:
        ref_logp = 0.0
        if REFERENCE:
            largest, total, selected = whole_row_state(
                reference_ptr, reference_stride, row, rows, action, states_ptr + 3 * rows, lane, stop, tiles,
                inverse_temperature, never, TILE, BLOCK, ALIGNED, TEMPERED, "evict_first",
            )  # fmt: skip
            ref_logp, _, _ = log_softmax_of(largest, total, selected, inverse_temperature)
        largest, total, selected = whole_row_state(
            policy_ptr, policy_stride, row, rows, action, states_ptr, lane, stop, tiles,
            inverse_temperature, never, TILE, BLOCK, ALIGNED, TEMPERED, KEEP,
        )  # fmt: skip
        logp, scaled_max, log_sum = log_softmax_of(largest, total, selected, inverse_temperature)
        old = tl.load(old_ptr + row).to(tl.float32)
        advantage = tl.load(advantages_ptr + sequence)
        _, _, slope, _, _ = policy_terms(logp, old, advantage, active, low, high)
        if REFERENCE and PENALIZED:
            _, kl_slope = kl_terms(logp, ref_logp, active, ESTIMATOR)
            slope = slope + beta * kl_slope
        coefficient = slope * tl.load(weights_ptr + sequence) * scale
    else:
        for model in tl.static_range(2 if REFERENCE else 1):
            tl.store(states_ptr + (3 * model) * rows + row, 0.0)
            tl.store(states_ptr + (3 * model + 1) * rows + row, 1.0)
            tl.store(states_ptr + (3 * model + 2) * rows + row, 0.0)
    logits_row = policy_ptr + row * policy_stride.to(tl.int64)
    gradient_row = gradient_ptr + row * gradient_stride.to(tl.int64)
    if ALIGNED:
        logits_row = tl.multiple_of(logits_row, 16)
        gradient_row = tl.multiple_of(gradient_row, 16)
    # In place: no warp may write before every warp has read the taken token's logit.
    tl.debug_barrier()
    blocks = tl.cdiv(columns, WRITE)
    for done in range(0, blocks):
        first = (blocks - 1 - done) * WRITE
        write_gradient_block(
            logits_row, gradient_row, first, action, coefficient, scaled_max, log_sum, stop, columns,
            inverse_temperature, WRITE, TEMPERED, DROP,
        )  # fmt: skip


def launch_one_kernel(inputs: LossInputs, plan: Plan, space: Workspace, out_NV: Tensor, grad_scale: float) -> None:
    """Fill the states [models * 3, N] from the logits, and `out_NV` with the gradient.

    Reads the workspace's advantages and weights. Rows that can be are held on the chip, with the same bits.
    """
    policy = unit_columns(inputs.policy_logits_NV)
    reference = policy if inputs.ref_logits_NV is None else unit_columns(inputs.ref_logits_NV)
    objective, shard = plan.objective, plan.shard
    if holds(policy, reference, out_NV, shard):
        launch_held_row(inputs, plan, space, out_NV, grad_scale)
        return
    block = block_of(shard.tile_width)
    options = tile_options(block)
    launch(
        one_kernel,
        (policy.shape[0], 1),
        (
            policy,
            reference,
            out_NV,
            inputs.action_ids_ST.contiguous(),
            inputs.active_ST.contiguous(),
            inputs.old_logps_ST.contiguous(),
            space.part("advantages"),
            space.part("weights"),
            space.part("states"),
        ),
        (
            policy.stride(0),
            reference.stride(0),
            out_NV.stride(0),
            policy.shape[0],
            inputs.active_ST.shape[1],
            plan.first_sequence,
            shard.num_real_columns,
            policy.shape[1],
            shard.num_tiles,
            plan.inverse_temperature,
            1 - objective.clip_eps_low,
            1 + objective.clip_eps_high,
            objective.beta,
            grad_scale / objective.temperature,
            0,
        ),
        (
            shard.tile_width,
            block,
            min(block, WRITE_PER_WARP * options["num_warps"]),
            is_aligned(block, policy, reference, out_NV) and is_aligned(shard.tile_width, policy, reference),
            plan.inverse_temperature != 1.0,
            inputs.ref_logits_NV is not None,
            *plan.penalty_constants,
            KEEP,
            DROP,
        ),
        options,
    )
