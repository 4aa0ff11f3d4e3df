"""Bitwise comparison of one quantity on one rank, located in global coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.drift import Drift

CHUNK = 1 << 22
NOT_A_NUMBER = 2**31
MOST = 2**63 - 1
WITHOUT_SEQUENCES = ("loss", "policy_loss", "kl", "clip_counts")
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


def compare(
    name: str, expected: Tensor, got: Tensor, origin: tuple[int, ...] = (), *, sharded: bool = False
) -> Drift:
    """Compare raw bits: +0 and -0 differ, equal NaNs agree. `origin` is the global index of element 0 per dim.

    Dim 0 of a per-sequence vector or of a [S, T, V] gradient is the sequence. Works in chunks; needs
    little memory beside the two tensors.
    """
    place = origin or (0,) * expected.dim()
    seen = Drift(
        name=name,
        elements=expected.numel(),
        nonzero=int(torch.count_nonzero(expected)),
        floating=expected.dtype.is_floating_point,
        by_sequence=name not in WITHOUT_SEQUENCES,
        shard=place if sharded else (),
    )
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return seen.model_copy(update=_misshapen(expected, got))
    if torch.equal(_bits(expected), _bits(got)):
        return seen
    return seen.model_copy(update=_located(expected, got, place, by_sequence=seen.by_sequence))


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().view(BITS_OF[values.dtype])


def _misshapen(expected: Tensor, got: Tensor) -> dict[str, Any]:
    described = [f"{list(each.shape)} {str(each.dtype).removeprefix('torch.')}" for each in (expected, got)]
    worst = {"mismatched": expected.numel(), "max_ulp": NOT_A_NUMBER, "max_abs": math.inf}
    return {**worst, "expected": described[0], "got": described[1], "expected_bits": "0x0", "got_bits": "0x0"}


def _located(expected: Tensor, got: Tensor, origin: tuple[int, ...], *, by_sequence: bool) -> dict[str, Any]:
    pairs = zip(expected.reshape(-1).split(CHUNK), got.reshape(-1).split(CHUNK), strict=True)
    parts = [_chunk(each, other, index * CHUNK) for index, (each, other) in enumerate(pairs)]
    parts = [part for part in parts if len(part.places)]
    found = torch.cat([part.places for part in parts])
    first = int(found[0])
    wanted, seen = expected.reshape(-1)[first], got.reshape(-1)[first]
    sizes = [part.max_abs for part in parts]
    return {
        "mismatched": len(found),
        "max_ulp": max(part.max_ulp for part in parts),
        "max_abs": math.nan if any(map(math.isnan, sizes)) else max(sizes),
        "first": _global(first, expected.shape, origin),
        "expected": repr(wanted.item()),
        "got": repr(seen.item()),
        "expected_bits": _hex(wanted),
        "got_bits": _hex(seen),
        "sequences": _sequences(found, expected.shape, origin) if by_sequence else (),
        "ratio": _span([part.ratio for part in parts]),
        "zeroed": sum(part.zeroed for part in parts),
    }


def _span(ratios: list[tuple[float, float] | None]) -> tuple[float, float] | None:
    known = [ratio for ratio in ratios if ratio is not None]
    return (min(r[0] for r in known), max(r[1] for r in known)) if len(known) == len(ratios) else None


@dataclass(frozen=True)
class _Part:
    places: Tensor
    max_ulp: int = 0
    max_abs: float = 0.0
    ratio: tuple[float, float] | None = None
    zeroed: int = 0


def _chunk(expected: Tensor, got: Tensor, offset: int) -> _Part:
    places = (_bits(expected) != _bits(got)).nonzero().flatten()
    if not len(places):
        return _Part(places)
    wanted, seen = expected[places], got[places]
    apart = (seen.double() - wanted.double()).abs()
    apart = torch.where((seen == wanted) & ~seen.isnan(), 0.0, apart)
    return _Part(
        places.cpu() + offset,
        int(ulp_distance(wanted, seen).max()),
        math.nan if bool(apart.isnan().any()) else float(apart.max()),
        _ratio(wanted.double(), seen.double()),
        int(((seen == 0) & (wanted != 0)).sum()),
    )


def _ratio(wanted: Tensor, seen: Tensor) -> tuple[float, float] | None:
    if bool((wanted == 0).any()) or not bool((wanted.isfinite() & seen.isfinite()).all()):
        return None
    ratios = seen / wanted
    return float(ratios.min()), float(ratios.max())


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
    bits = _bits(values).long()
    lowest = torch.iinfo(BITS_OF[values.dtype]).min
    return torch.where(bits < 0, lowest - bits, bits)


def _global(flat: int, shape: torch.Size, origin: tuple[int, ...]) -> tuple[int, ...]:
    place = []
    for extent, start in zip(reversed(shape), reversed(origin), strict=True):
        flat, index = divmod(flat, extent)
        place.append(index + start)
    return tuple(reversed(place))


def _sequences(places: Tensor, shape: torch.Size, origin: tuple[int, ...]) -> tuple[int, ...]:
    if not shape:
        return ()
    per_sequence = math.prod(shape[1:])
    return tuple(int(each) + origin[0] for each in (places // per_sequence).unique())


def _hex(value: Tensor) -> str:
    width = value.element_size() * 8
    return f"0x{int(_bits(value.reshape(1))[0]) & ((1 << width) - 1):0{width // 4}x}"
