"""Bitwise comparison of one quantity on one rank, located in global coordinates."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from harness.comparing.blocks import as_3d, block, blocks
from harness.comparing.drift import Drift
from harness.comparing.frame import Frame
from harness.comparing.scan import Scan
from harness.comparing.ulp import NOT_A_NUMBER

CHUNK = 1 << 20
WITHOUT_SEQUENCES = ("loss", "policy_loss", "kl", "clip_counts")


def compare(
    name: str,
    expected: Tensor,
    got: Tensor,
    origin: tuple[int, ...] = (),
    *,
    sharded: bool = False,
    frame: Frame | None = None,
) -> Drift:
    """Compare raw bits: +0 and -0 differ, equal NaNs agree. `origin` is the global index of element 0 per dim.

    Dim 0 of a per-sequence vector or of a [S, T, V] gradient is the sequence. One pass, block by block on the
    tensors' device: nothing of the tensors' own size is allocated. `frame` lets the tally know of masked slots,
    clip bounds, groups and vocabulary tiles.
    """
    place = origin or (0,) * expected.dim()
    seen = Drift(
        name=name,
        elements=expected.numel(),
        nonzero=0,
        floating=expected.dtype.is_floating_point,
        by_sequence=name not in WITHOUT_SEQUENCES,
        shard=place if sharded else (),
    )
    if got.shape != expected.shape or got.dtype != expected.dtype:
        nonzero = sum(
            int(torch.count_nonzero(block(expected, each))) for each in blocks(as_3d(expected.shape), CHUNK)
        )
        return seen.model_copy(update={"nonzero": nonzero, **_misshapen(expected, got)})
    scan = Scan(seen, expected, got, place, frame, CHUNK)
    return seen.model_copy(update=scan.run())


def _misshapen(expected: Tensor, got: Tensor) -> dict[str, Any]:
    described = [f"{list(each.shape)} {str(each.dtype).removeprefix('torch.')}" for each in (expected, got)]
    # An empty part against a full one differs too: it must not pass as nothing to compare.
    elements = expected.numel() or max(got.numel(), 1)
    worst = {"elements": elements, "mismatched": elements, "max_ulp": NOT_A_NUMBER, "max_abs": math.inf}
    return {**worst, "expected": described[0], "got": described[1], "expected_bits": "0x0", "got_bits": "0x0"}
