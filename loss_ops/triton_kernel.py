"""Launching a kernel with little host work: compiled once per types and constants, then called directly.

Triton's own launch binds, specializes and hashes its arguments on every call. Here nothing is specialized on a
value (the order of a sum must not follow from an address or a size), so types and constants are the whole key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loss_ops.triton_launch import interpreted

INTERPRETED = interpreted()
INT32_MAX = 2**31 - 1

_compiled: dict[tuple[Any, ...], Any] = {}


class Part:
    """The elements of a one-dimensional buffer from `offset` on, as a kernel's argument.

    A plain class: a dozen are made per call, and a frozen dataclass takes several times as long to make.
    """

    __slots__ = ("buffer", "dtype", "offset")

    def __init__(self, buffer: Tensor, offset: int) -> None:
        self.buffer, self.offset, self.dtype = buffer, offset, buffer.dtype

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self.buffer.data_ptr() + self.offset * self.buffer.itemsize


Pointer = Tensor | Part


def launch(
    kernel: Any,
    grid: tuple[int, int],
    pointers: tuple[Pointer, ...],
    numbers: tuple[float, ...],
    constants: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    """Run `kernel(*pointers, *numbers, *constants)` on the device of the first pointer, on its current stream.

    `options` must follow from `constants`.
    """
    if INTERPRETED:
        tensors = (each.buffer[each.offset :] if isinstance(each, Part) else each for each in pointers)
        kernel[grid](*tensors, *numbers, *constants, **options)
        return
    first = pointers[0]
    device = (first.buffer if isinstance(first, Part) else first).get_device()
    if device == torch.cuda.current_device():
        _launch(kernel, grid, pointers, numbers, constants, options, device)
    else:
        with torch.cuda.device(device):
            _launch(kernel, grid, pointers, numbers, constants, options, device)


def _launch(
    kernel: Any,
    grid: tuple[int, int],
    pointers: tuple[Pointer, ...],
    numbers: tuple[float, ...],
    constants: tuple[Any, ...],
    options: dict[str, Any],
    device: int,
) -> None:
    types = tuple([each.dtype for each in pointers])
    wide = bool(numbers) and max(numbers) > INT32_MAX
    # By identity: a jitted function's own hash reads its source again.
    key = (id(kernel), constants, types, wide and tuple(each > INT32_MAX for each in numbers), device)
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = _compiled[key] = kernel.warmup(*types, *numbers, *constants, grid=(1, 1, 1), **options)
    addresses = [each.data_ptr() for each in pointers]
    compiled[(grid[0], grid[1], 1)](*addresses, *numbers, *constants)
