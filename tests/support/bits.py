"""Bit by bit: tensors as integers: +0 and -0 differ, equal NaNs agree. Shares nothing with the harness."""

from collections.abc import Mapping

import torch
from torch import Tensor

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(values: Tensor) -> Tensor:
    """The same bits as integers of the same width."""
    return values.detach().contiguous().view(INTEGERS[values.element_size()])


def count_differing(one: Tensor, other: Tensor) -> int:
    """Elements whose bits differ. Raises AssertionError where shapes or dtypes do."""
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    return int((bits(one) != bits(other)).sum())


def differing(expected: Mapping[str, Tensor], got: Mapping[str, Tensor]) -> dict[str, int]:
    """Quantities that differ, each with its number of differing elements; empty when all bits are equal."""
    assert expected.keys() == got.keys()
    counts = {name: count_differing(expected[name], got[name]) for name in expected}
    return {name: count for name, count in counts.items() if count}
