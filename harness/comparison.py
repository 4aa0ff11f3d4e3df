"""Bitwise comparison of one quantity on one rank, located in global coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from harness.diagnosis.frame import Frame
from harness.diagnosis.tallying import Differing, Tallying
from harness.drift import Drift

CHUNK = 1 << 20
MOST_MOVED = 1024
Block = tuple[slice, slice, slice]
Index = tuple[int, int, int]
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
        nonzero = sum(int(torch.count_nonzero(_block(expected, each))) for each in _blocks(_as_3d(expected.shape)))
        return seen.model_copy(update={"nonzero": nonzero, **_misshapen(expected, got)})
    scan = _Scan(seen, expected, got, place, frame)
    return seen.model_copy(update=scan.run())


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().view(BITS_OF[values.dtype])


def _misshapen(expected: Tensor, got: Tensor) -> dict[str, Any]:
    described = [f"{list(each.shape)} {str(each.dtype).removeprefix('torch.')}" for each in (expected, got)]
    worst = {"mismatched": expected.numel(), "max_ulp": NOT_A_NUMBER, "max_abs": math.inf}
    return {**worst, "expected": described[0], "got": described[1], "expected_bits": "0x0", "got_bits": "0x0"}


class _Scan:
    """One pass over two tensors of one shape."""

    def __init__(
        self, seen: Drift, expected: Tensor, got: Tensor, origin: tuple[int, ...], frame: Frame | None
    ) -> None:
        self.seen, self.expected, self.got, self.origin, self.frame = seen, expected, got, origin, frame
        self.shape = _as_3d(expected.shape)
        self.nonzero = 0
        self.tallying: Tallying | None = None
        self.parts: list[_Part] = []
        self.first: Index | None = None
        self.first_non_finite: Index | None = None

    def run(self) -> dict[str, Any]:
        """What the pass found, as fields of a Drift."""
        for place in _blocks(self.shape):
            expected, got = _block(self.expected, place), _block(self.got, place)
            self.nonzero += int(torch.count_nonzero(expected))
            if not torch.equal(_bits(expected), _bits(got)):
                self._differ(expected, got, place)
        return {"nonzero": self.nonzero} | (self._located() if self.first else {})

    def _differ(self, expected: Tensor, got: Tensor, place: Block) -> None:
        where = (_bits(expected) != _bits(got)).nonzero()
        s, t, v = (index + part.start for index, part in zip(where.unbind(1), place, strict=True))
        wanted, seen = expected[tuple(where.unbind(1))], got[tuple(where.unbind(1))]
        ulp = ulp_distance(wanted, seen)
        self.first = self.first or (int(s[0]), int(t[0]), int(v[0]))
        if wanted.dtype.is_floating_point and self.first_non_finite is None:
            broken = (~seen.isfinite() & wanted.isfinite()).nonzero().flatten()[:1].tolist()
            self.first_non_finite = next(((int(s[k]), int(t[k]), int(v[k])) for k in broken), None)
        self.parts.append(_part(wanted, seen, ulp))
        scale = self._scale(expected, where, wanted)
        self._tally(where.device).add(Differing(wanted, seen, s, t, v, ulp, scale))

    def _tally(self, device: torch.device) -> Tallying:
        if self.tallying is None:
            origin = (*self.origin, 0, 0, 0)[:3]
            if len(self.origin) != self.expected.dim() or self.expected.dim() > 3:
                origin = (0, 0, 0)
            by_sequence = self.seen.by_sequence and self.expected.dim() > 0
            self.tallying = Tallying(self.shape, origin, device, self.frame, slots=by_sequence)
        return self.tallying

    def _scale(self, expected: Tensor, where: Tensor, wanted: Tensor) -> Tensor:
        """[K] how large an error in each element another order of sums explains, relative to the tolerance.

        A gradient element is a coefficient of its row times a weight: a row is as exact as its largest element,
        a coefficient as the largest of all. Other quantities are as exact as their largest element.
        """
        if not expected.dtype.is_floating_point:
            return expected.new_zeros(len(where))
        if self.shape[2] == 1:
            return self.largest.expand(len(where))
        row = expected.abs().amax(2)[where[:, 0], where[:, 1]].double()
        weight = (wanted.double().abs() / row).nan_to_num(0.0, 0.0)
        return torch.maximum(row, self.largest * weight)

    @cached_property
    def largest(self) -> Tensor:
        """The largest magnitude among the expected values, or of the terms behind a single number."""
        told = self.frame.scales.get(self.seen.name) if self.frame else None
        if told is not None:
            return self.expected.new_tensor(told, dtype=torch.float64)
        parts = [_block(self.expected, place).abs().amax().double() for place in _blocks(self.shape)]
        return torch.stack(parts).nan_to_num(0.0, 0.0).amax()

    def _located(self) -> dict[str, Any]:
        assert self.first is not None
        assert self.tallying is not None
        wanted, seen = (_block(each, tuple(slice(i, i + 1) for i in self.first)).flatten()[0]
                        for each in (self.expected, self.got))  # fmt: skip
        sizes = [part.max_abs for part in self.parts]
        moved = self._moved() if self.seen.by_sequence and self.expected.dim() == 1 else ()
        lost = self._global(self.first_non_finite) if self.first_non_finite else None
        tally = self.tallying.finish(lost, moved)
        rows = self.tallying.rows.view(self.shape[:2]).sum(1).nonzero().flatten().tolist()
        start = self.origin[0] if self.origin else 0
        by_sequence = self.seen.by_sequence and self.expected.dim() > 0
        return {
            "mismatched": tally.mismatched,
            "max_ulp": max(part.max_ulp for part in self.parts),
            "max_abs": math.nan if any(map(math.isnan, sizes)) else max(sizes),
            "first": self._global(self.first),
            "expected": repr(wanted.item()),
            "got": repr(seen.item()),
            "expected_bits": _hex(wanted),
            "got_bits": _hex(seen),
            "sequences": tuple(each + start for each in rows) if by_sequence else (),
            "ratio": _span([part.ratio for part in self.parts]),
            "zeroed": sum(part.zeroed for part in self.parts),
            "tally": tally,
        }

    def _global(self, index: Index) -> tuple[int, ...]:
        _, length, columns = self.shape
        flat = (index[0] * length + index[1]) * columns + index[2]
        return _global(flat, self.expected.shape, self.origin)

    def _moved(self) -> tuple[tuple[int, int], ...]:
        """(s, r) for each differing sequence s of a whole vector that shows the value expected of r instead."""
        expected, got = _bits(self.expected).tolist(), _bits(self.got).tolist()
        held = {value: index for index, value in reversed(list(enumerate(expected)))}
        pairs = [(s, held.get(value)) for s, value in enumerate(got) if value != expected[s]]
        # A value that several sequences share says nothing about where it came from.
        if len(held) < len(expected):
            return ()
        start = self.origin[0]
        return tuple((s + start, r + start) for s, r in pairs[:MOST_MOVED] if r is not None)


def _as_3d(shape: torch.Size) -> tuple[int, int, int]:
    """Sequences, slots and columns of a tensor; dims that it lacks are 1, dims beyond three are slots."""
    if len(shape) < 3:
        return (*shape, 1, 1, 1)[:3]
    return shape[0], math.prod(shape[1:-1]), shape[-1]


def _blocks(shape: tuple[int, int, int]) -> Iterator[Block]:
    """Blocks of at most CHUNK elements in the order of the elements."""
    sequences, length, columns = shape
    row = max(1, columns)
    rows = max(1, min(length, CHUNK // row))
    deep = max(1, CHUNK // (row * max(1, length))) if rows == length else 1
    wide = row if row <= CHUNK else CHUNK
    for s in range(0, sequences, deep):
        for t in range(0, length, rows):
            for v in range(0, columns, wide):
                yield slice(s, s + deep), slice(t, t + rows), slice(v, v + wide)


def _block(values: Tensor, place: tuple[slice, ...]) -> Tensor:
    """[s, t, v] the part of a tensor; a view where the tensor has at most three dims."""
    if values.dim() > 3:
        return values[place[0]].flatten(1, -2)[:, place[1], place[2]]
    padded = values[(...,) + (None,) * (3 - values.dim())]
    return padded[place]


def _span(ratios: list[tuple[float, float] | None]) -> tuple[float, float] | None:
    known = [ratio for ratio in ratios if ratio is not None]
    return (min(r[0] for r in known), max(r[1] for r in known)) if len(known) == len(ratios) else None


@dataclass(frozen=True)
class _Part:
    max_ulp: int = 0
    max_abs: float = 0.0
    ratio: tuple[float, float] | None = None
    zeroed: int = 0


def _part(wanted: Tensor, seen: Tensor, ulp: Tensor) -> _Part:
    apart = (seen.double() - wanted.double()).abs()
    apart = torch.where((seen == wanted) & ~seen.isnan(), 0.0, apart)
    return _Part(
        int(ulp.max()),
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


def _hex(value: Tensor) -> str:
    width = value.element_size() * 8
    return f"0x{int(_bits(value.reshape(1))[0]) & ((1 << width) - 1):0{width // 4}x}"
