"""Counts in tensors as bins: plain numbers, at most 64 an axis."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.comparing.bins import Bins, Cells, width_for


def bins_of(counts: Tensor, start: int, elements: int | Tensor) -> Bins:
    """Bins of a count for each of the indices from `start` on, each standing for so many elements."""
    held = counts.cpu()
    width = width_for(start, start + len(held))
    place = (torch.arange(len(held)) + start) // width
    place -= start // width
    total = int(place[-1]) + 1
    sizes = torch.zeros(total, dtype=torch.int64)
    sizes.index_add_(0, place, elements if isinstance(elements, Tensor) else torch.full_like(held, elements))
    summed = torch.zeros(total, dtype=torch.int64).index_add_(0, place, held)
    return Bins(width=width, first=start // width, counts=tuple(summed.tolist()), sizes=tuple(sizes.tolist()))


def cells_of(rows_ST: Tensor, start: int) -> Cells:
    """Cells of a count for every slot of the sequences from `start` on."""
    sequences, length = rows_ST.shape
    tall, wide = width_for(start, start + sequences), width_for(0, length)
    place = (torch.arange(sequences) + start) // tall - start // tall
    narrow = torch.zeros(int(place[-1]) + 1, length, dtype=torch.int64).index_add_(0, place, rows_ST)
    column = torch.arange(length) // wide
    cells = torch.zeros(len(narrow), int(column[-1]) + 1, dtype=torch.int64).index_add_(1, column, narrow)
    rows = tuple(tuple(row) for row in cells.tolist())
    return Cells(sequence_width=tall, token_width=wide, first=start // tall, rows=rows)
