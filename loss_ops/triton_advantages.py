"""Group-relative advantages in Triton: one program normalizes one group, of any size."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grpo_contract import AdvantageKind, StdEpsMode
from loss_ops.triton_launch import MEMBER_CHUNK
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
def all_equal(rewards_ptr, begin, end, shift, CHUNK: tl.constexpr):
    """1 where every reward of the group equals its first."""
    lane = tl.arange(0, CHUNK)
    different = tl.zeros([CHUNK], tl.int32)
    for first in range(begin, end, CHUNK):
        member = first + lane
        inside = member < end
        value = tl.load(rewards_ptr + member, mask=inside, other=0.0).to(tl.float32)
        different += (inside & (value != shift)).to(tl.int32)
    return tl.sum(different, 0) == 0


@triton.jit(do_not_specialize=["rewards_ptr", "offsets_ptr", "out_ptr", "eps"])
def group_norm_kernel(
    rewards_ptr,
    offsets_ptr,
    out_ptr,
    eps,
    CHUNK: tl.constexpr,
    KIND: tl.constexpr,
    EPS_MODE: tl.constexpr,
):
    """Advantages of one group: measured from its first reward, centred, divided by its spread."""
    group = tl.program_id(0)
    begin = tl.load(offsets_ptr + group)
    end = tl.load(offsets_ptr + group + 1)
    size = (end - begin).to(tl.float32)
    shift = tl.load(rewards_ptr + begin).to(tl.float32)
    mean = tl.div_rn(group_sum(rewards_ptr, begin, end, shift, 0.0, False, CHUNK), size)
    divisor = 1.0
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
    equal = all_equal(rewards_ptr, begin, end, shift, CHUNK)
    lane = tl.arange(0, CHUNK)
    for first in range(begin, end, CHUNK):
        member = first + lane
        inside = member < end
        centred = (tl.load(rewards_ptr + member, mask=inside, other=0.0).to(tl.float32) - shift) - mean
        scaled = tl.div_rn(centred, tl.zeros([CHUNK], tl.float32) + divisor)
        tl.store(out_ptr + member, tl.where(equal, 0.0, scaled) + 0.0, mask=inside)


def launch_advantages(rewards_B: Tensor, plan: Plan) -> Tensor:
    """[B] float32 advantages of the whole batch. Groups do not touch each other's bits."""
    spec = plan.objective.advantage
    out = torch.empty(rewards_B.shape, dtype=torch.float32, device=rewards_B.device)
    group_norm_kernel[(plan.group_offsets.shape[0] - 1,)](
        rewards_B,
        plan.group_offsets,
        out,
        spec.std_eps,
        CHUNK=MEMBER_CHUNK,
        KIND=AdvantageKind(spec.kind).value,
        EPS_MODE=StdEpsMode(spec.std_eps_mode).value,
        num_warps=1,
        num_stages=1,
        enable_fp_fusion=False,
    )
    return out
