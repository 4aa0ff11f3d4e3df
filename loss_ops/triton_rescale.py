"""An in-place gradient times an incoming gradient, without asking the host what that is."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from loss_ops.triton_kernel import launch
from loss_ops.triton_launch import FEW_PROGRAMS, GRADIENT_BLOCK, GRADIENT_WARPS, SMALL


@triton.jit(do_not_specialize=["gradient_ptr", "upstream_ptr", "stride", "rows", "columns"])
def rescale_kernel(gradient_ptr, upstream_ptr, stride, rows, columns, BLOCK: tl.constexpr):
    """Multiply by 0 or a power of two, which is exact while in range; NaN for any other factor."""
    upstream = tl.load(upstream_ptr).to(tl.float32)
    if upstream != 1.0:
        mantissa = upstream.to(tl.int32, bitcast=True) & 0x7FFFFF
        finite = tl.abs(upstream) < float("inf")
        factor = tl.where((mantissa == 0) & finite, upstream, float("nan"))
        blocks = tl.cdiv(columns, BLOCK)
        for index in range(tl.program_id(0), rows * blocks, tl.num_programs(0)):
            row = (index // blocks).to(tl.int64)
            column = (index % blocks) * BLOCK + tl.arange(0, BLOCK)
            here = gradient_ptr + row * stride.to(tl.int64) + column
            gradient = tl.load(here, mask=column < columns, other=0.0).to(tl.float32) * factor
            tl.store(here, (gradient + 0.0).to(gradient_ptr.dtype.element_ty), mask=column < columns)


def rescale(gradient_NV: Tensor, upstream: Tensor) -> Tensor:
    """`gradient_NV` itself, times a scalar on the device: exact for 0 and powers of two, else NaN throughout."""
    rows, columns = gradient_NV.shape
    launch(
        rescale_kernel,
        (min(FEW_PROGRAMS, rows * triton.cdiv(columns, GRADIENT_BLOCK)), 1),
        (gradient_NV, upstream),
        (gradient_NV.stride(0), rows, columns),
        (GRADIENT_BLOCK,),
        {**SMALL, "num_warps": GRADIENT_WARPS},
    )
    return gradient_NV
