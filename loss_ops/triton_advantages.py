"""Group-relative advantages in Triton: a program walks a group of any size, so none is too large."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from loss_ops.triton_kernel import Part, launch
from loss_ops.triton_launch import MEMBER_CHUNK, SMALL
from loss_ops.triton_plan import Plan


@triton.jit
def group_sum(rewards_ptr, begin, end, shift, mean, SQUARED: tl.constexpr, CHUNK: tl.constexpr):
    """Sum over a group of (reward - shift), or of the squares of that minus `mean`. Lane j first, then lanes."""
    lane = tl.arange(0, CHUNK)
    total = tl.zeros([CHUNK], tl.float32)
    for first in range(begin, end, CHUNK):
        member = first + lane
        inside = member < end
        value = tl.load(rewards_ptr + member, mask=inside, other=0.0).to(tl.float32) - shift
        if SQUARED:
            value = (value - mean) * (value - mean)
        total += tl.where(inside, value, 0.0)
    return tl.sum(total, 0)


@triton.jit
def count_different(rewards_ptr, begin, end, shift, CHUNK: tl.constexpr):
    """How many rewards of the group differ from its first."""
    lane = tl.arange(0, CHUNK)
    different = tl.zeros([CHUNK], tl.int32)
    for first in range(begin, end, CHUNK):
        member = first + lane
        inside = member < end
        value = tl.load(rewards_ptr + member, mask=inside, other=0.0).to(tl.float32)
        different += (inside & (value != shift)).to(tl.int32)
    return tl.sum(different, 0)


@triton.jit
def advantage_of(
    rewards_ptr,
    begins_ptr,
    ends_ptr,
    member,
    eps,
    CHUNK: tl.constexpr,
    KIND: tl.constexpr,
    EPS_MODE: tl.constexpr,
):
    """Advantage of one sequence: measured from its group's first reward, centred, divided by the spread.

    Exactly 0 in a group of equal rewards. `begins` and `ends` give the group of each sequence.
    """
    begin = tl.load(begins_ptr + member)
    end = tl.load(ends_ptr + member)
    size = (end - begin).to(tl.float32)
    shift = tl.load(rewards_ptr + begin).to(tl.float32)
    mean = tl.div_rn(group_sum(rewards_ptr, begin, end, shift, 0.0, False, CHUNK), size)
    advantage = (tl.load(rewards_ptr + member).to(tl.float32) - shift) - mean
    if KIND != "mean_only":
        squares = group_sum(rewards_ptr, begin, end, shift, mean, True, CHUNK)
        count = size - 1.0 if KIND == "mean_std_sample" else size
        variance = tl.div_rn(squares, count)
        if EPS_MODE == "variance":
            divisor = tl.sqrt_rn(variance + eps)
        elif EPS_MODE == "add":
            divisor = tl.sqrt_rn(variance) + eps
        else:
            divisor = tl.maximum(tl.sqrt_rn(variance), eps)
        advantage = tl.div_rn(advantage, divisor)
    different = count_different(rewards_ptr, begin, end, shift, CHUNK)
    return tl.where(different == 0, 0.0, advantage) + 0.0


@triton.jit(do_not_specialize=["rewards_ptr", "begins_ptr", "ends_ptr", "out_ptr", "eps"])
def group_norm_kernel(
    rewards_ptr,
    begins_ptr,
    ends_ptr,
    out_ptr,
    eps,
    CHUNK: tl.constexpr,
    KIND: tl.constexpr,
    EPS_MODE: tl.constexpr,
):
    """Advantage of sequence program_id(0) into `out` [B]."""
    member = tl.program_id(0)
    advantage = advantage_of(rewards_ptr, begins_ptr, ends_ptr, member, eps, CHUNK, KIND, EPS_MODE)
    tl.store(out_ptr + member, advantage)


def launch_advantages(rewards_B: Tensor, plan: Plan, out_B: Tensor | Part) -> None:
    """[B] float32 advantages of the whole batch. Groups do not touch each other's bits."""
    launch(
        group_norm_kernel,
        (rewards_B.shape[0], 1),
        (rewards_B, *plan.group_of_sequence, out_B),
        (plan.objective.advantage.std_eps,),
        (MEMBER_CHUNK, *plan.advantage_constants),
        SMALL,
    )
