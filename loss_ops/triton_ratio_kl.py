"""The dense policy ratio and KL penalty op on Triton kernels."""

from __future__ import annotations

from loss_ops.native_ratio_kl import NativeRatioKLOp
from loss_ops.triton_stages import TRITON_STAGES


class TritonRatioKLOp(NativeRatioKLOp):
    """Policy ratio and KL penalty per token from dense logits; tile statistics and gradient are Triton kernels."""

    def __init__(self) -> None:
        super().__init__(TRITON_STAGES)
