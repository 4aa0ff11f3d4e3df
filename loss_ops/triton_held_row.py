"""The one-kernel path with most of the policy's row held on the chip between its two uses (a Gluon kernel).

Few programs stay for the whole launch, each with a ring of slots in shared memory (`triton_ring`): loads run ahead
of the arithmetic, over the ends of rows too, and the last chunks of the policy's row stay in their slots until its
gradient is written. The bits are those of the other paths: tiles are summed in the same layout, joined in the same
order, and every element is formed by the same operations.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined"
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from loss_ops.triton_gradient import gradient_of_tile
from loss_ops.triton_held_states import (
    STATE,
    exponents,
    join_tiles,
    max_and_sum,
    sum_again,
)
from loss_ops.triton_math import kl_terms, log_softmax_of, policy_terms
from loss_ops.triton_normal_exp import (
    SMALLEST_PRODUCT,
    folded,
    is_normal,
    lowest_exponent,
    normal_exp,
    normal_gradient,
    smaller,
)
from loss_ops.triton_ring import barrier, following, load_next, next_active
from loss_ops.triton_tiles import selected_logit


@gluon.jit
def write_chunk(
    gradient_row, offsets, first, raw, coefficient, scaled_max, log_sum, inverse_temperature, normal,
    TEMPERED: gl.constexpr,
):  # fmt: skip
    """The gradient of columns first + offsets as if all were real and none the target."""
    dtype: gl.constexpr = gradient_row.dtype.element_ty
    if coefficient == 0.0:
        written = gl.full(raw.shape, 0.0, dtype, raw.type.layout)
    else:
        logits = raw.to(gl.float32)
        if normal:
            gradient = normal_gradient(logits, coefficient, scaled_max, log_sum, inverse_temperature, TEMPERED)
        else:
            gradient = gradient_of_tile(
                logits, 0, 1, coefficient, scaled_max, log_sum, inverse_temperature, TEMPERED
            )
        written = gradient.to(dtype)
    gl.store(gradient_row + first + offsets, written, eviction_policy="evict_first")


@gluon.jit(
    do_not_specialize=[
        "policy_ptr", "reference_ptr", "gradient_ptr", "actions_ptr", "active_ptr", "old_ptr", "advantages_ptr",
        "weights_ptr", "states_ptr", "scratch_ptr", "policy_stride", "reference_stride", "gradient_stride", "rows",
        "length", "first_sequence", "columns", "inverse_temperature", "low", "high", "beta", "scale",
    ]
)  # fmt: skip
def held_row_kernel(  # noqa: PLR0912, PLR0915
    policy_ptr, reference_ptr, gradient_ptr, actions_ptr, active_ptr, old_ptr, advantages_ptr, weights_ptr,
    states_ptr, scratch_ptr, policy_stride, reference_stride, gradient_stride, rows, length, first_sequence,
    columns, inverse_temperature, low, high, beta, scale,
    TILE: gl.constexpr, TILE_WARPS: gl.constexpr, TILES: gl.constexpr, GROUP: gl.constexpr, CHUNKS: gl.constexpr,
    SLOTS: gl.constexpr, HELD: gl.constexpr, FOLDS: gl.constexpr, TEMPERED: gl.constexpr,
    REFERENCE: gl.constexpr, PENALIZED: gl.constexpr, ESTIMATOR: gl.constexpr,
):  # fmt: skip
    """As `one_kernel`, for rows program_id(0), program_id(0) + num_programs(0), ...

    A step takes the maxima of one chunk's tiles and, in the same reduction, the sums of the chunk before. The sums
    are right where no exponential is denormal, which the row's least logit tells; else they are formed again.
    Every step ends a group of loads, be it empty, so that "all but the latest SLOTS - 1" always covers the next.
    """
    dtype: gl.constexpr = policy_ptr.dtype.element_ty
    warps: gl.constexpr = gl.num_warps()
    vector: gl.constexpr = 128 // dtype.primitive_bitwidth
    layout: gl.constexpr = gl.BlockedLayout([1, vector], [1, 32], [warps // TILE_WARPS, TILE_WARPS], [1, 0])
    of_tile: gl.constexpr = gl.SliceLayout(1, layout)
    of_column: gl.constexpr = gl.SliceLayout(0, layout)
    pair: gl.constexpr = gl.BlockedLayout([1], [32], [warps], [0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    WIDTH: gl.constexpr = GROUP * TILE
    AGAIN: gl.constexpr = CHUNKS - HELD
    REFERENCE_CHUNKS: gl.constexpr = CHUNKS if REFERENCE else 0
    MODELS: gl.constexpr = 2 if REFERENCE else 1
    ring = gl.allocate_shared_memory(dtype, [SLOTS, GROUP, TILE], plain)
    program = gl.program_id(0)
    step = gl.num_programs(0)
    policy_stride = policy_stride.to(gl.int64)
    reference_stride = reference_stride.to(gl.int64)
    rows64 = rows.to(gl.int64)
    within = gl.arange(0, GROUP, layout=of_tile)
    offsets = gl.expand_dims(within * TILE, 1) + gl.expand_dims(gl.arange(0, TILE, layout=of_column), 0)
    scratch_ptr += program * (STATE * CHUNKS * GROUP)
    active = gl.load(active_ptr + program, mask=program < rows, other=0)
    action = gl.load(actions_ptr + program, mask=program < rows, other=0)
    # Of the next load: row, number within the row, slot; whether the row after it is active; where it reads.
    ahead, flag = next_active(active_ptr, program, active, rows)
    item = program * 0
    free = program * 0
    ahead_first = program * 0
    ahead_ptr = policy_ptr + ahead.to(gl.int64) * policy_stride
    if REFERENCE:
        ahead_ptr = reference_ptr + ahead.to(gl.int64) * reference_stride
    for _slot in range(SLOTS):
        ahead, item, free, flag, ahead_ptr, ahead_first = load_next(
            ring, policy_ptr, reference_ptr, active_ptr, policy_stride, reference_stride, offsets, rows,
            ahead, item, free, flag, ahead_ptr, ahead_first, SLOTS, REFERENCE_CHUNKS, CHUNKS, AGAIN, WIDTH,
        )  # fmt: skip
    slot = program * 0
    for row in range(program, rows, step):
        next_action = gl.load(actions_ptr + row + step, mask=row + step < rows, other=0)
        next_flag = gl.load(active_ptr + row + step, mask=row + step < rows, other=0)
        row64 = row.to(gl.int64)
        own = states_ptr + row64
        policy_row = policy_ptr + row64 * policy_stride
        reference_row = reference_ptr + row64 * reference_stride
        gradient_row = gl.multiple_of(gradient_ptr + row64 * gradient_stride.to(gl.int64), 16)
        if active != 0:
            sequence = first_sequence + row // length
            old = gl.load(old_ptr + row).to(gl.float32)
            advantage = gl.load(advantages_ptr + sequence)
            weight = gl.load(weights_ptr + sequence)
            selected = selected_logit(policy_row, action, columns)
            ref_selected = 0.0
            if REFERENCE:
                ref_selected = selected_logit(reference_row, action, columns)
            async_copy.wait_group(SLOTS - 1)
            raw = ring.index(slot).load(layout)
            floor = folded(raw, FOLDS)
            largest = gl.max(raw.to(gl.float32), 1)
            at = scratch_ptr + within * STATE + (MODELS - 1)
            gl.store(at, largest)
            before = slot
            slot = following(slot, SLOTS)
            for each in range(1, REFERENCE_CHUNKS + CHUNKS):
                async_copy.wait_group(SLOTS - 2)
                earlier = ring.index(before).load(layout).to(gl.float32)
                exponent = exponents(earlier, largest, inverse_temperature, TEMPERED)
                raw = ring.index(slot).load(layout)
                floor = smaller(floor, folded(raw, FOLDS))
                largest, total = gl.reduce((raw.to(gl.float32), normal_exp(exponent)), 1, max_and_sum)
                if each <= REFERENCE_CHUNKS + AGAIN:  # the chunk before is not held
                    ahead, item, free, flag, ahead_ptr, ahead_first = load_next(
                        ring, policy_ptr, reference_ptr, active_ptr, policy_stride, reference_stride, offsets,
                        rows, ahead, item, free, flag, ahead_ptr, ahead_first, SLOTS, REFERENCE_CHUNKS,
                        CHUNKS, AGAIN, WIDTH,
                    )  # fmt: skip
                else:
                    async_copy.commit_group()
                gl.store(at + 2, total)
                at += GROUP * STATE
                if REFERENCE and each == REFERENCE_CHUNKS:
                    at = scratch_ptr + within * STATE
                gl.store(at, largest)
                before = slot
                slot = following(slot, SLOTS)
            earlier = ring.index(before).load(layout).to(gl.float32)
            exponent = exponents(earlier, largest, inverse_temperature, TEMPERED)
            gl.store(at + 2, gl.sum(normal_exp(exponent), 1))
            async_copy.commit_group()
            least = gl.min(gl.min(floor.to(gl.float32), 1), 0)
            join_tiles(scratch_ptr, own, rows64, inverse_temperature, TILES, MODELS, pair)
            lowest = lowest_exponent(least, gl.load(own), inverse_temperature, TEMPERED)
            if REFERENCE:
                ref_largest = gl.load(own + 3 * rows64)
                lowest = gl.minimum(lowest, lowest_exponent(least, ref_largest, inverse_temperature, TEMPERED))
            if is_normal(lowest) == False:  # noqa: E712
                sum_again(policy_row, scratch_ptr, offsets, within, inverse_temperature, CHUNKS, TEMPERED)
                if REFERENCE:
                    ref_scratch = scratch_ptr + 1
                    sum_again(reference_row, ref_scratch, offsets, within, inverse_temperature, CHUNKS, TEMPERED)
                join_tiles(scratch_ptr, own, rows64, inverse_temperature, TILES, MODELS, pair)
            gl.store(own + 2 * rows64, selected)
            logp, scaled_max, log_sum = log_softmax_of(
                gl.load(own), gl.load(own + rows64), selected, inverse_temperature
            )
            _ratio, _loss, slope, _low, _high = policy_terms(logp, old, advantage, True, low, high)
            if REFERENCE:
                gl.store(own + 5 * rows64, ref_selected)
                if PENALIZED:
                    ref_logp, _max, _log = log_softmax_of(
                        gl.load(own + 3 * rows64), gl.load(own + 4 * rows64), ref_selected, inverse_temperature
                    )
                    _kl, kl_slope = kl_terms(logp, ref_logp, True, ESTIMATOR)
                    slope = slope + beta * kl_slope
            coefficient = slope * weight * scale
            if TEMPERED:
                least = least * inverse_temperature
            lowest = (least - scaled_max) - log_sum
            normal = is_normal(lowest) & (normal_exp(lowest) * gl.abs(coefficient) >= SMALLEST_PRODUCT)
            slot = slot - HELD
            if slot < 0:
                slot += SLOTS
            for each in range(CHUNKS):
                chunk = AGAIN + each
                if each >= HELD:
                    chunk = CHUNKS - 1 - each
                    async_copy.wait_group(SLOTS - 1)
                raw = ring.index(slot).load(layout)
                ahead, item, free, flag, ahead_ptr, ahead_first = load_next(
                    ring, policy_ptr, reference_ptr, active_ptr, policy_stride, reference_stride, offsets,
                    rows, ahead, item, free, flag, ahead_ptr, ahead_first, SLOTS, REFERENCE_CHUNKS, CHUNKS, AGAIN,
                    WIDTH,
                )  # fmt: skip
                write_chunk(
                    gradient_row, offsets, chunk * WIDTH, raw, coefficient, scaled_max, log_sum,
                    inverse_temperature, normal, TEMPERED,
                )  # fmt: skip
                slot = following(slot, SLOTS)
            barrier()  # the target's element was written as any other: once more, after all
            if (coefficient != 0.0) & (action >= 0) & (action < columns):
                chosen = gradient_of_tile(
                    selected, 0, 0, coefficient, scaled_max, log_sum, inverse_temperature, TEMPERED
                )
                gl.store(gradient_row + action, chosen.to(gradient_ptr.dtype.element_ty))
        else:
            for model in gl.static_range(MODELS):
                gl.store(own + (3 * model) * rows64, 0.0)
                gl.store(own + (3 * model + 1) * rows64, 1.0)
                gl.store(own + (3 * model + 2) * rows64, 0.0)
            nothing = gl.full([GROUP, TILE], 0.0, gradient_ptr.dtype.element_ty, layout)
            for chunk in range(CHUNKS):
                gl.store(gradient_row + chunk * WIDTH + offsets, nothing, eviction_policy="evict_first")
        active = next_flag
        action = next_action
