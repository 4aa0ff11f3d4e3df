"""Summation trees: sums whose order is fixed by their extent alone.

The order: pad to a power of two with zeros, then add the upper half onto the lower half, element by element,
until one is left. Element-wise additions have no hidden order, so the bits depend neither on how many rows
are summed in one call nor on strides, threads or heuristics of a reduction kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor


def fold_sum(terms: Tensor, dim: int) -> Tensor:
    """Sum over `dim` by folding halves; the dim is removed. Any float dtype; accumulates in that dtype.

    Zeros appended at the end of `dim` change no bit of a sum that is not zero.
    """
    moved = terms.movedim(dim, 0)
    extent = moved.shape[0]
    if extent == 0:
        return moved.new_zeros(moved.shape[1:])
    while extent > 1:
        half = 1 << (extent - 1).bit_length() - 1
        # Rows [half, extent) fold onto [0, extent - half); the rest meets a padding zero.
        folded = moved[: extent - half] + moved[half:extent]
        moved = folded if extent == 2 * half else torch.cat((folded, moved[extent - half : half] + 0.0))
        extent = half
    return moved[0]


def masked_fold_sum(terms: Tensor, active: Tensor, dim: int) -> Tensor:
    """`fold_sum` over active terms. Whatever an inactive slot holds, it enters as +0.0, and so does -0.0."""
    return fold_sum(torch.where(active, terms, 0.0) + 0.0, dim)
