"""One pass over two tensors of one shape: which elements differ, where first, and how much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from harness.comparing.blocks import Block, Index, as_3d, block, blocks, global_index
from harness.comparing.drift import Drift
from harness.comparing.frame import Frame
from harness.comparing.tally import tolerance
from harness.comparing.tallying import Differing, Tallying
from harness.comparing.ulp import hex_bits, raw_bits, ulp_distance

MOST_MOVED = 1024


class Scan:
    """One pass over two tensors of one shape."""

    def __init__(
        self,
        seen: Drift,
        expected: Tensor,
        got: Tensor,
        origin: tuple[int, ...],
        frame: Frame | None,
        chunk: int,
    ) -> None:
        self.seen, self.expected, self.got, self.origin, self.frame = seen, expected, got, origin, frame
        self.chunk = chunk
        self.shape = as_3d(expected.shape)
        self.nonzero = self.non_finite = 0
        self.tallying: Tallying | None = None
        self.parts: list[_Part] = []
        self.first: Index | None = None
        self.first_non_finite: Index | None = None

    def run(self) -> dict[str, Any]:
        """What the pass found, as fields of a Drift."""
        for place in blocks(self.shape, self.chunk):
            expected, got = block(self.expected, place), block(self.got, place)
            finite = expected.isfinite()
            self.nonzero += int(((expected != 0) & finite).sum())
            self.non_finite += int((~finite).sum())
            if not torch.equal(raw_bits(expected), raw_bits(got)):
                self._differ(expected, got, place)
        return {"nonzero": self.nonzero, "non_finite": self.non_finite} | (self._located() if self.first else {})

    def _differ(self, expected: Tensor, got: Tensor, place: Block) -> None:
        flat = (raw_bits(expected) != raw_bits(got)).flatten().nonzero().flatten()
        wanted, seen = expected.flatten()[flat], got.flatten()[flat]
        row, v = flat // expected.shape[2], flat % expected.shape[2]
        s, t = row // expected.shape[1] + place[0].start, row % expected.shape[1] + place[1].start
        v = v + place[2].start
        ulp = ulp_distance(wanted, seen)
        self.first = self.first or (int(s[0]), int(t[0]), int(v[0]))
        if wanted.dtype.is_floating_point and self.first_non_finite is None:
            broken = (~seen.isfinite() & wanted.isfinite()).nonzero().flatten()[:1].tolist()
            self.first_non_finite = next(((int(s[k]), int(t[k]), int(v[k])) for k in broken), None)
        self.parts.append(_part(wanted, seen, ulp))
        scale = self._scale(expected, row, wanted)
        self._tally(flat.device).add(Differing(wanted, seen, s, t, v, ulp, scale))

    def _tally(self, device: torch.device) -> Tallying:
        if self.tallying is None:
            known = len(self.origin) == self.expected.dim() <= 3
            s, t, v = (*self.origin, 0, 0, 0)[:3] if known else (0, 0, 0)
            by_sequence = self.seen.by_sequence and self.expected.dim() > 0
            self.tallying = Tallying(self.shape, (s, t, v), device, self.frame, slots=by_sequence)
        return self.tallying

    def _scale(self, expected: Tensor, row: Tensor, wanted: Tensor) -> Tensor:
        """[K] how large an error in each element another order of sums explains, relative to the tolerance.

        A gradient element is a coefficient of its row times a weight: a row is as exact as its largest element,
        a coefficient as the largest of all. Other quantities are as exact as their largest element.
        """
        if not expected.dtype.is_floating_point:
            return expected.new_zeros(len(row))
        if self.shape[2] == 1:
            return self.largest.expand(len(row))
        size = expected.abs().amax(2).flatten()[row].double()
        weight = (wanted.double().abs() / size).nan_to_num(0.0, 0.0)
        return torch.maximum(size, self.largest * weight)

    @cached_property
    def largest(self) -> Tensor:
        """The largest magnitude among the expected values, or of the terms behind a single number."""
        told = self.frame.scales.get(self.seen.name) if self.frame else None
        if told is not None:
            return self.expected.new_tensor(told, dtype=torch.float64)
        parts = [block(self.expected, place).abs().amax().double() for place in blocks(self.shape, self.chunk)]
        return torch.stack(parts).nan_to_num(0.0, 0.0).amax()

    def _located(self) -> dict[str, Any]:
        assert self.first is not None
        assert self.tallying is not None
        wanted, seen = (block(each, tuple(slice(i, i + 1) for i in self.first)).flatten()[0]
                        for each in (self.expected, self.got))  # fmt: skip
        sizes = [part.max_abs for part in self.parts]
        moved: tuple[tuple[int, int], ...] = ()
        gross = self.tallying.gross
        if gross is not None and self.seen.by_sequence and self.expected.dim() == 1:
            moved = self._moved(gross.rows.nonzero().flatten().tolist()[:MOST_MOVED])
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
            "expected_bits": hex_bits(wanted),
            "got_bits": hex_bits(seen),
            "sequences": tuple(each + start for each in rows) if by_sequence else (),
            "tally": tally,
        }

    def _global(self, index: Index) -> tuple[int, ...]:
        _, length, columns = self.shape
        flat = (index[0] * length + index[1]) * columns + index[2]
        return global_index(flat, self.expected.shape, self.origin)

    def _moved(self, rows: list[int]) -> tuple[tuple[int, int], ...]:
        """(s, r) for each sequence s of `rows` that shows the value expected of r, and of r alone, instead."""
        if len(rows) < 2:
            return ()
        expected, got = self.expected.double(), self.got.double()[rows]
        near = tolerance(0.0, MOST_MOVED) * float(self.largest)
        order = expected.argsort()
        sorted_B = expected[order].contiguous()
        low = torch.searchsorted(sorted_B, got - near)
        high = torch.searchsorted(sorted_B, got + near, right=True)
        alone = (high - low == 1).tolist()
        sources = order[low.clamp_max(len(order) - 1)].tolist()
        start = self.origin[0]
        found = zip(rows, sources, alone, strict=True)
        return tuple((s + start, r + start) for s, r, known in found if known and r != s)


@dataclass(frozen=True)
class _Part:
    max_ulp: int = 0
    max_abs: float = 0.0


def _part(wanted: Tensor, seen: Tensor, ulp: Tensor) -> _Part:
    apart = (seen.double() - wanted.double()).abs()
    apart = torch.where((seen == wanted) & ~seen.isnan(), 0.0, apart)
    return _Part(int(ulp.max()), math.nan if bool(apart.isnan().any()) else float(apart.max()))
