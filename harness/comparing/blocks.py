"""Tensors as blocks of sequences, slots and columns, so that a pass over them needs little memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

Block = tuple[slice, slice, slice]
Index = tuple[int, int, int]


def as_3d(shape: torch.Size) -> tuple[int, int, int]:
    """Sequences, slots and columns of a tensor; dims that it lacks are 1, dims beyond three are slots."""
    if len(shape) < 3:
        return (*shape, 1, 1, 1)[:3]
    return shape[0], math.prod(shape[1:-1]), shape[-1]


def blocks(shape: tuple[int, int, int], chunk: int) -> Iterator[Block]:
    """Blocks of at most `chunk` elements in the order of the elements."""
    sequences, length, columns = shape
    row = max(1, columns)
    rows = max(1, min(length, chunk // row))
    deep = max(1, chunk // (row * max(1, length))) if rows == length else 1
    wide = row if row <= chunk else chunk
    for s in range(0, sequences, deep):
        for t in range(0, length, rows):
            for v in range(0, columns, wide):
                yield slice(s, s + deep), slice(t, t + rows), slice(v, v + wide)


def block(values: Tensor, place: tuple[slice, ...]) -> Tensor:
    """[s, t, v] the part of a tensor; a view where the tensor has at most three dims."""
    if values.dim() > 3:
        return values[place[0]].flatten(1, -2)[:, place[1], place[2]]
    padded = values[(...,) + (None,) * (3 - values.dim())]
    return padded[place]


def global_index(flat: int, shape: torch.Size, origin: tuple[int, ...]) -> tuple[int, ...]:
    """The place of element `flat` of a part, one index per dim, counted from the whole tensor's start."""
    place = []
    for extent, start in zip(reversed(shape), reversed(origin), strict=True):
        flat, index = divmod(flat, extent)
        place.append(index + start)
    return tuple(reversed(place))
