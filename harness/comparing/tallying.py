"""Counts over the differing elements of two tensors, on their device, block by block, in bounded memory.

Shapes: S sequences, T slots and V columns of the compared part; a vector is [S, 1, 1]; K differing elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.comparing.binning import bins_of, cells_of
from harness.comparing.bins import Bins
from harness.comparing.frame import NEAR, Frame
from harness.comparing.tally import Moments, Tally, merge_groups, merge_moments, tolerance

BUCKETS = 65
Place = tuple[int, int, int]


@dataclass(frozen=True)
class Differing:
    """The differing elements of one block: values [K], places [K] within the part, ULP distances [K]."""

    expected: Tensor
    got: Tensor
    s: Tensor
    t: Tensor
    v: Tensor
    ulp: Tensor
    scale: Tensor

    def where(self, chosen: Tensor) -> Differing:
        """The chosen elements alone."""
        return Differing(*(value[chosen] for value in vars(self).values()))

    @property
    def relative(self) -> Tensor:
        """[K] |got - expected| over the larger of |expected| and the scale; infinite where that is no number."""
        scale = torch.maximum(self.expected.double().abs(), self.scale.double())
        apart = (self.got.double() - self.expected.double()).abs()
        return (apart / scale.clamp_min(torch.finfo(self.expected.dtype).tiny)).nan_to_num(math.inf, math.inf)


class Tallying:
    """Collects blocks; `finish` gives the tally. Keeps two integers a slot and one a vocabulary tile."""

    def __init__(
        self, shape: Place, origin: Place, device: torch.device, frame: Frame | None, *, slots: bool
    ) -> None:
        self.shape, self.origin, self.frame, self.slots = shape, origin, frame, slots
        sequences, length, columns = shape
        self.tile = frame.tile_width if frame else 1
        tiles = (origin[2] + columns - 1) // self.tile - origin[2] // self.tile + 1
        whole = {"dtype": torch.int64, "device": device}
        self.rows = torch.zeros(sequences * length, **whole)  # type: ignore[call-overload]
        self.net = torch.zeros_like(self.rows)
        self.tiles = torch.zeros(tiles, **whole)  # type: ignore[call-overload]
        self.ulps = torch.zeros(BUCKETS, **whole)  # type: ignore[call-overload]
        self.low = torch.full((sequences,), math.inf, dtype=torch.float64, device=device)
        self.high = -self.low
        self.counts = dict.fromkeys(("not_numbers", "non_finite", "zeroed", "bfloat16", "float16", "local"), 0)
        self.factor, self.offset = [Moments(base=1.0)], [Moments()]
        self.relative = 0.0
        self.eps = 0.0
        self.gross: Tallying | None = None

    @property
    def is_vector(self) -> bool:
        """Whether it is of one number a sequence."""
        return self.slots and self.shape[1:] == (1, 1)

    def add(self, block: Differing) -> None:
        """Count one block, and once more what of it no rounding explains."""
        self._add(block)
        if block.expected.dtype.is_floating_point and bool((gross := self._is_gross(block)).any()):
            if self.gross is None:
                self.gross = Tallying(self.shape, self.origin, self.rows.device, self.frame, slots=self.slots)
            self.gross._add(block if bool(gross.all()) else block.where(gross))

    def _is_gross(self, block: Differing) -> Tensor:
        gross = block.relative > tolerance(self.eps, self._extent())
        if self.shape[2] == 1:
            return gross
        # Zeros of a gradient are exact: masked slots, padding columns, tokens that a clip silences.
        least = 64 * torch.finfo(block.expected.dtype).tiny
        return gross | ((block.expected == 0) & ((block.got == 0) | (block.got.abs() > least)))

    def _add(self, block: Differing) -> None:
        row = block.s * self.shape[1] + block.t
        self.rows += torch.bincount(row, minlength=len(self.rows))
        self.tiles += torch.bincount((block.v + self.origin[2]) // self.tile - self.origin[2] // self.tile,
                                     minlength=len(self.tiles))  # fmt: skip
        if not block.expected.dtype.is_floating_point:
            self.ulps += _digits(block.ulp)
            return
        self.eps = torch.finfo(block.expected.dtype).eps
        apart = block.got.double() - block.expected.double()
        grown = (apart.sign() * block.expected.double().sign()).nan_to_num().long()
        self.net.index_add_(0, row, grown)
        self._add_kinds(block)
        self._add_sizes(block, apart)
        self._add_factors(block)

    def _add_kinds(self, block: Differing) -> None:
        numbers = ~(block.expected.isnan() | block.got.isnan())
        self.ulps += _digits(block.ulp[numbers])
        found = {
            "not_numbers": ~numbers,
            "non_finite": ~block.got.isfinite() & block.expected.isfinite(),
            "zeroed": (block.got == 0) & (block.expected != 0),
            "bfloat16": block.got.bfloat16().double() == block.got.double(),
            "float16": block.got.half().double() == block.got.double(),
        }
        if self.frame is not None and self.is_vector:
            local = self.frame.local_advantages.to(block.got.device)[block.s + self.origin[0]]
            found["local"] = (block.got - local).abs() <= NEAR * local.abs().clamp_min(1.0)
        for name, where in found.items():
            self.counts[name] += int(where.sum())

    def _add_sizes(self, block: Differing, apart: Tensor) -> None:
        self.relative = max(self.relative, float(block.relative.max()))
        known = apart[apart.isfinite()]
        self.offset.append(_moments(known, 0.0))

    def _add_factors(self, block: Differing) -> None:
        normal = 64 * torch.finfo(block.expected.dtype).tiny
        usable = (block.expected.abs() > normal) & block.expected.isfinite() & block.got.isfinite()
        factors = block.got[usable].double() / block.expected[usable].double()
        self.factor.append(_moments(factors - 1, 1.0))
        if len(factors):
            self.low.scatter_reduce_(0, block.s[usable], factors, "amin")
            self.high.scatter_reduce_(0, block.s[usable], factors, "amax")

    def finish(
        self, first_non_finite: tuple[int, ...] | None = None, moved: tuple[tuple[int, int], ...] = ()
    ) -> Tally:
        """The tally of everything added."""
        rows = self.rows.view(self.shape[:2])
        ulps = self.ulps.tolist()
        while ulps and not ulps[-1]:
            ulps.pop()
        found: dict[str, Any] = {
            "mismatched": int(rows.sum()),
            "ulps": tuple(ulps),
            "first_non_finite": first_non_finite,
            "factor": merge_moments(self.factor),
            "offset": merge_moments(self.offset),
            "relative": self.relative,
            "rows_up": int((self.net > 0).sum()),
            "rows_down": int((self.net < 0).sum()),
            "moved": moved,
            "eps": self.eps,
            "extent": self._extent(),
            **self.counts,
            "gross": self.gross.finish(first_non_finite, moved) if self.gross else None,
        }
        return Tally(**found, **(self._places(rows) if self.slots else {}))

    def _extent(self) -> int:
        if self.frame is None:
            return max(self.shape)
        contract = self.frame.batch.contract
        return max(contract.geometry.padded_seq_len, contract.logprob.padded_vocab_size)

    def _places(self, rows: Tensor) -> dict[str, Any]:
        sequences, length, columns = self.shape
        start = self.origin[0]
        found: dict[str, Any] = {"sequence": bins_of(rows.sum(1), start, length * columns)}
        if length > 1 or columns > 1:
            found["token"] = bins_of(rows.sum(0), 0, sequences * columns)
            found["cells"] = cells_of(rows.cpu(), start)
        if columns > 1 and self.frame:
            found["tile"] = self._tile_bins(sequences * length)
        return found | self._framed(rows, start, start + sequences)

    def _tile_bins(self, slots: int) -> Bins:
        first, last = self.origin[2], self.origin[2] + self.shape[2]
        numbers = range(first // self.tile, first // self.tile + len(self.tiles))
        widths = [min(last, (n + 1) * self.tile) - max(first, n * self.tile) for n in numbers]
        return bins_of(self.tiles, numbers[0], torch.tensor(widths) * slots)

    def _framed(self, rows: Tensor, start: int, stop: int) -> dict[str, Any]:
        if self.frame is None:
            return {}
        found: dict[str, Any] = {}
        sizes = self.frame.group_sizes(start, stop)
        spans = zip(sizes, self.low.tolist(), self.high.tolist(), strict=True)
        found["group_factors"] = merge_groups(span for span in spans if span[1] <= span[2])
        if self.is_vector:
            found["local_wanted"] = int(self.frame.is_local_other[start:stop].sum())
        active = self.frame.active(start, stop)
        if rows.shape == active.shape and self.shape[1] > 1:
            found["masked"] = int(rows[~active].sum())
            found["boundary"] = int(rows[self.frame.at_boundary(start, stop)].sum())
        return found


def _digits(distances: Tensor) -> Tensor:
    """[65] how many distances have 0, 1, 2, ... binary digits; frexp's exponent is their number."""
    return torch.bincount(torch.frexp(distances.double())[1].long(), minlength=BUCKETS)[:BUCKETS]


def _moments(values: Tensor, base: float) -> Moments:
    if not len(values):
        return Moments(base=base)
    return Moments(
        base=base,
        count=len(values),
        total=float(values.sum()),
        squares=float((values * values).sum()),
        low=base + float(values.min()),
        high=base + float(values.max()),
    )
