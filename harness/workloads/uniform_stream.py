"""Streams of uniform numbers: the C++ program's own, and torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


class UniformStream(Protocol):
    """Numbers in [0, 1). Looking ahead consumes nothing."""

    def upcoming(self, count: int) -> Doubles:
        """The next `count` numbers."""

    def consume(self, count: int) -> None:
        """Drop the next `count` numbers."""


class _Buffered:
    def __init__(self) -> None:
        self._buffer: Doubles = np.empty(0)

    def upcoming(self, count: int) -> Doubles:
        missing = count - len(self._buffer)
        if missing > 0:
            drawn = self._draw(missing)
            self._buffer = np.concatenate((self._buffer, drawn)) if len(self._buffer) else drawn
        return self._buffer[:count]

    def consume(self, count: int) -> None:
        if count > len(self._buffer):
            self.upcoming(count)
        self._buffer = self._buffer[count:]

    def _draw(self, count: int) -> Doubles:
        raise NotImplementedError


class Mt19937Stream(_Buffered):
    """std::mt19937(seed) behind std::generate_canonical<double, 53>: (a + b * 2^32) / 2^64 from two draws."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._source = np.random.RandomState(seed)

    def _draw(self, count: int) -> Doubles:
        words = self._source.randint(0, 2**32, size=(count, 2), dtype=np.uint32).astype(np.float64)
        uniforms: Doubles = (words[:, 0] + words[:, 1] * 2.0**32) / 2.0**64
        return np.minimum(uniforms, np.nextafter(1.0, 0.0))


class TorchStream(_Buffered):
    """torch's own CPU generator, float64."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._source = torch.Generator().manual_seed(seed)

    def _draw(self, count: int) -> Doubles:
        uniforms: Doubles = torch.rand(count, generator=self._source, dtype=torch.float64).numpy()
        return uniforms


STREAMS: dict[str, Callable[[int], UniformStream]] = {"mt19937": Mt19937Stream, "torch": TorchStream}
"""Streams by name; each takes a seed."""
