"""How the Triton kernels are launched: a fixed configuration, because a sum's order follows from it."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from torch import Tensor

from grpo_contract import InputError, Problem

WIDEST_TILE = 8192
SLOT_CHUNK = 512
SEQUENCE_CHUNK = 1024
MEMBER_CHUNK = 128

# One entry per power of two of the tile's width: the sum of a tile is a tree over num_warps * 32 threads.
TILE_WARPS = ((512, 1), (1024, 2), (2048, 2), (8192, 4))
# The gradient is element-wise: these two change no bit.
GRADIENT_BLOCK, GRADIENT_WARPS = 2048, 4
# Enough to fill a device, few enough to start and leave in microseconds.
FEW_PROGRAMS = 2048

LAUNCH: dict[str, Any] = {
    "tile_warps": ",".join(f"{width}:{warps}" for width, warps in TILE_WARPS),
    "chunks": f"{SLOT_CHUNK},{SEQUENCE_CHUNK},{MEMBER_CHUNK}",
    "fp_fusion": False,
}

# No contraction of a multiply and an add: what is written is what is computed, in every kernel alike.
SMALL: dict[str, Any] = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter on the CPU (TRITON_INTERPRET=1 before triton is imported)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def triton_refusal(device: str) -> str | None:
    """Why the kernels cannot run on this kind of device, or None."""
    if importlib.util.find_spec("triton") is None:
        return "needs triton, not installed"
    if device == "cuda" or (device == "cpu" and interpreted()):
        return None
    if device == "cpu":
        return "runs on the CPU only in Triton's interpreter (set TRITON_INTERPRET=1)"
    return f"runs on cuda, not on {device}"


def block_of(tile_width: int) -> int:
    """The power of two that holds a tile. Raises InputError for a tile wider than the kernels take."""
    if tile_width > WIDEST_TILE:
        expected = f"tiles of at most {WIDEST_TILE} columns (use more num_vocab_tiles)"
        raise InputError(Problem("input.tile_width", "logprob.num_vocab_tiles", expected, f"{tile_width} columns"))
    return 1 << (tile_width - 1).bit_length()


def tile_options(block: int) -> dict[str, Any]:
    """Launch options of a kernel that sums tiles: they depend on the tile's width alone."""
    warps = next(warps for width, warps in TILE_WARPS if block <= width)
    return {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": False}


def is_aligned(tile_width: int, *logits_NV: Tensor) -> bool:
    """Whether every tile of every row starts on 16 bytes, so that loads may be vectors. Changes no bit."""
    return all(
        each.data_ptr() % 16 == 0
        and each.stride(0) * each.element_size() % 16 == 0
        and tile_width * each.element_size() % 16 == 0
        for each in logits_NV
    )


def unit_columns(logits_NV: Tensor) -> Tensor:
    """The logits with neighbouring columns next to each other: a view where they are, else a copy."""
    return logits_NV if logits_NV.stride(1) == 1 or logits_NV.shape[1] == 1 else logits_NV.contiguous()
