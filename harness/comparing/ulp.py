"""Raw bits of tensors, and distances in units of the last place."""

from __future__ import annotations

import torch
from torch import Tensor

NOT_A_NUMBER = 2**31
MOST = 2**63 - 1
BITS_OF = {
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float64: torch.int64,
    torch.int64: torch.int64,
    torch.int32: torch.int32,
    torch.int16: torch.int16,
    torch.int8: torch.int8,
    torch.uint8: torch.uint8,
    torch.bool: torch.uint8,
}


def raw_bits(values: Tensor) -> Tensor:
    """The same bits as integers; a view where the values lie one after the other, else a copy."""
    return values.contiguous().view(BITS_OF[values.dtype])


def ulp_distance(expected: Tensor, got: Tensor) -> Tensor:
    """[..] int64: how many representable values apart; integers by difference, a NaN against a number 2^31.

    A distance beyond int64, which only 64-bit values can have, counts as the largest int64.
    Floats are ordered by their bits, negative ones mirrored, so that +0 and -0 are 0 apart.
    """
    if not expected.dtype.is_floating_point:
        return _apart(expected.long(), got.long())
    distance = _apart(_ordered(expected), _ordered(got))
    return torch.where(expected.isnan() | got.isnan(), NOT_A_NUMBER, distance)


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """|one - other|, and the largest int64 where that does not fit."""
    distance = (one - other).abs()
    wrapped = ((one ^ other) & (one ^ (one - other))) < 0
    return torch.where(wrapped | (distance < 0), MOST, distance)


def _ordered(values: Tensor) -> Tensor:
    bits = raw_bits(values).long()
    lowest = torch.iinfo(BITS_OF[values.dtype]).min
    return torch.where(bits < 0, lowest - bits, bits)


def hex_bits(value: Tensor) -> str:
    """The bits of one element, such as 0x3f800000."""
    width = value.element_size() * 8
    return f"0x{int(raw_bits(value.reshape(1))[0]) & ((1 << width) - 1):0{width // 4}x}"
