"""The analytic gradient in Triton: element-wise, written once, in the logits' dtype."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from grpo_contract import ShardingSpec
from loss_ops.inputs import Slots
from loss_ops.logprob import Logprobs
from loss_ops.triton_kernel import Pointer, launch
from loss_ops.triton_launch import FEW_PROGRAMS, GRADIENT_BLOCK, GRADIENT_WARPS, SMALL, is_aligned, unit_columns
from loss_ops.vocab_shard import VocabShard


@triton.jit
def gradient_of_tile(
    logits, column, target, coefficient, largest, log_sum, inverse_temperature, TEMPERED: tl.constexpr
):
    """coefficient * (1[column is the target] - p) with p = exp((logit / temperature - largest) - log_sum)."""
    scaled = logits
    if TEMPERED:
        scaled = scaled * inverse_temperature
    probability = tl.exp((scaled - largest) - log_sum)
    rest = tl.where(column == target, 1.0 - probability, 0.0 - probability)
    return rest * coefficient + 0.0


@triton.jit
def write_gradient_block(
    logits_row,
    gradient_row,
    first,
    target,
    coefficient,
    largest,
    log_sum,
    stop,
    columns,
    inverse_temperature,
    BLOCK: tl.constexpr,
    TEMPERED: tl.constexpr,
    EVICTION: tl.constexpr,
):
    """Write columns [first, first + BLOCK) of one row; from `stop` to `columns` (padding) exactly +0.0."""
    dtype = gradient_row.dtype.element_ty
    column = first + tl.arange(0, BLOCK)
    if coefficient == 0.0 and first + BLOCK <= columns:
        tl.store(gradient_row + column, tl.zeros([BLOCK], dtype), eviction_policy=EVICTION)
    elif coefficient == 0.0:
        tl.store(gradient_row + column, tl.zeros([BLOCK], dtype), mask=column < columns)
    elif first + BLOCK <= stop:
        logits = tl.load(logits_row + column, eviction_policy=EVICTION).to(tl.float32)
        gradient = gradient_of_tile(
            logits, column, target, coefficient, largest, log_sum, inverse_temperature, TEMPERED
        )
        tl.store(gradient_row + column, gradient.to(dtype), eviction_policy=EVICTION)
    else:
        real = column < stop
        logits = tl.load(logits_row + column, mask=real, other=float("-inf"), eviction_policy=EVICTION).to(
            tl.float32
        )
        gradient = gradient_of_tile(
            logits, column, target, coefficient, largest, log_sum, inverse_temperature, TEMPERED
        )
        written = tl.where(real, gradient, 0.0).to(dtype)
        tl.store(gradient_row + column, written, mask=column < columns, eviction_policy=EVICTION)


@triton.jit
def gradient_step(
    index,
    logits_ptr,
    gradient_ptr,
    actions_ptr,
    coefficient_ptr,
    max_ptr,
    log_sum_ptr,
    upstream,
    logits_stride,
    gradient_stride,
    start,
    stop,
    columns,
    inverse_temperature,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    TEMPERED: tl.constexpr,
):
    """Block `index` of all rows' blocks. A row of coefficient 0 (a masked one too) is written and not read."""
    blocks = tl.cdiv(columns, BLOCK)
    row = (index // blocks).to(tl.int64)
    first = (index % blocks) * BLOCK
    logits_row = logits_ptr + row * logits_stride.to(tl.int64)
    gradient_row = gradient_ptr + row * gradient_stride.to(tl.int64)
    if ALIGNED:
        logits_row = tl.multiple_of(logits_row, 16)
        gradient_row = tl.multiple_of(gradient_row, 16)
    coefficient = tl.load(coefficient_ptr + row) * upstream
    target = tl.load(actions_ptr + row) - start
    write_gradient_block(
        logits_row, gradient_row, first, target, coefficient, tl.load(max_ptr + row), tl.load(log_sum_ptr + row),
        stop, columns, inverse_temperature, BLOCK, TEMPERED, "evict_first",
    )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "logits_ptr", "gradient_ptr", "actions_ptr", "coefficient_ptr", "max_ptr", "log_sum_ptr", "upstream_ptr",
        "logits_stride", "gradient_stride", "start", "stop", "columns", "rows", "inverse_temperature",
    ]
)  # fmt: skip
def gradient_kernel(
    logits_ptr,
    gradient_ptr,
    actions_ptr,
    coefficient_ptr,
    max_ptr,
    log_sum_ptr,
    upstream_ptr,
    logits_stride,
    gradient_stride,
    start,
    stop,
    columns,
    rows,
    inverse_temperature,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    TEMPERED: tl.constexpr,
    UPSTREAM: tl.constexpr,
    UNLESS_ONE: tl.constexpr,
):
    """A program a block; with UNLESS_ONE few programs share all blocks, and leave at once where upstream is 1.

    UPSTREAM multiplies the coefficient by a scalar on the device.
    """
    upstream = 1.0
    if UPSTREAM:
        upstream = tl.load(upstream_ptr).to(tl.float32)
    index = tl.program_id(0)
    if UNLESS_ONE:
        if upstream != 1.0:
            for each in range(index, rows * tl.cdiv(columns, BLOCK), tl.num_programs(0)):
                gradient_step(
                    each, logits_ptr, gradient_ptr, actions_ptr, coefficient_ptr, max_ptr, log_sum_ptr, upstream,
                    logits_stride, gradient_stride, start, stop, columns, inverse_temperature,
                    BLOCK, ALIGNED, TEMPERED,
                )  # fmt: skip
    else:
        gradient_step(
            index, logits_ptr, gradient_ptr, actions_ptr, coefficient_ptr, max_ptr, log_sum_ptr, upstream,
            logits_stride, gradient_stride, start, stop, columns, inverse_temperature, BLOCK, ALIGNED, TEMPERED,
        )  # fmt: skip


@dataclass(frozen=True)
class GradientInputs:
    """What the gradient of N slots is made of; see `launch_gradient`."""

    action_ids: Tensor
    coefficient: Pointer
    largest: Pointer
    log_sum: Pointer
    shard: VocabShard
    inverse_temperature: float


def launch_gradient(
    logits_NV: Tensor,
    out_NV: Tensor,
    inputs: GradientInputs,
    *,
    upstream: Tensor | None = None,
    unless_one: bool = False,
) -> Tensor:
    """Write the [N, V] gradient into `out_NV` (which may be the logits themselves) and return it.

    `upstream` is a scalar on the device that multiplies the float32 coefficients; with `unless_one` nothing is
    touched when it is 1. No reduction: each element is its own.
    """
    logits_NV = unit_columns(logits_NV)
    rows, columns = logits_NV.shape
    shard, coefficient = inputs.shard, inputs.coefficient
    blocks = rows * -(-columns // GRADIENT_BLOCK)
    launch(
        gradient_kernel,
        (min(blocks, FEW_PROGRAMS) if unless_one else blocks, 1),
        (
            logits_NV,
            out_NV,
            inputs.action_ids.contiguous(),
            coefficient,
            inputs.largest,
            inputs.log_sum,
            coefficient if upstream is None else upstream,
        ),
        (
            logits_NV.stride(0),
            out_NV.stride(0),
            shard.start,
            shard.num_real_columns,
            columns,
            rows,
            inputs.inverse_temperature,
        ),
        (
            GRADIENT_BLOCK,
            is_aligned(GRADIENT_BLOCK, logits_NV, out_NV),
            inputs.inverse_temperature != 1.0,
            upstream is not None,
            unless_one,
        ),
        {**SMALL, "num_warps": GRADIENT_WARPS},
    )
    return out_NV


def logits_gradient(
    logits_NV: Tensor, slots: Slots, coefficient_N: Tensor, softmax: Logprobs, _sharding: ShardingSpec
) -> Tensor:
    """The stage `logits_gradient`: [N, V], contiguous, in the logits' dtype; nothing of the layout enters."""
    out = torch.empty_like(logits_NV, memory_format=torch.contiguous_format)
    coefficient, largest, log_sum = (
        each.contiguous() for each in (coefficient_N, softmax.max_N, softmax.log_sum_N)
    )
    inputs = GradientInputs(
        slots.action_ids_N, coefficient, largest, log_sum, slots.shard, 1.0 / slots.temperature
    )
    return launch_gradient(logits_NV, out, inputs)
