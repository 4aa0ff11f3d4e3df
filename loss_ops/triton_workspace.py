"""The small results of one call in two buffers, read as tensors only when somebody asks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from loss_ops.triton_kernel import Part


@dataclass(frozen=True)
class WorkspaceLayout:
    """Where each part lies: N slots, S own and B all sequences, one or two sets of logits."""

    slots: int
    own: int
    batch: int
    models: int

    @cached_property
    def floats(self) -> dict[str, tuple[int, int]]:
        """Offset and extent of the float32 parts."""
        return _placed(
            states=3 * self.models * self.slots,
            softmax=4 * self.slots,
            coefficient=self.slots,
            advantages=self.batch,
            weights=self.batch,
            scalars=3,
            by_sequence=3 * self.batch,
        )

    @cached_property
    def integers(self) -> dict[str, tuple[int, int]]:
        """Offset and extent of the int64 parts."""
        return _placed(totals=7 * self.own, clips=4, counts=self.own)

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Elements of the float32 and of the int64 buffer."""
        return sum(extent for _, extent in self.floats.values()), sum(n for _, n in self.integers.values())


def _placed(**extents: int) -> dict[str, tuple[int, int]]:
    placed, offset = {}, 0
    for name, extent in extents.items():
        placed[name] = (offset, extent)
        offset += extent
    return placed


class Workspace:
    """One allocation of each kind; parts by name."""

    __slots__ = ("floats", "integers", "layout")

    def __init__(self, layout: WorkspaceLayout, device: torch.device) -> None:
        self.layout = layout
        floats, integers = layout.sizes
        self.floats = torch.empty(floats, dtype=torch.float32, device=device)
        self.integers = torch.empty(integers, dtype=torch.int64, device=device)

    def part(self, name: str) -> Part:
        """A part as a kernel's argument."""
        if name in self.layout.floats:
            return Part(self.floats, self.layout.floats[name][0])
        return Part(self.integers, self.layout.integers[name][0])

    def row(self, name: str, index: int, length: int) -> Part:
        """Row `index` of a float part whose rows have `length` elements."""
        return Part(self.floats, self.layout.floats[name][0] + index * length)

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A part as a tensor."""
        if name in self.layout.floats:
            return self.floats.narrow(0, *self.layout.floats[name]).view(shape)
        return self.integers.narrow(0, *self.layout.integers[name]).view(shape)

    def scalar(self, index: int) -> Tensor:
        """0-dim loss (0), policy_loss (1) or kl (2)."""
        return self.floats[self.layout.floats["scalars"][0] + index]

    def by_sequence(self, index: int) -> Tensor:
        """[B] policy totals (0), kl totals (1) or weights (2)."""
        batch = self.layout.batch
        return self.floats.narrow(0, self.layout.floats["by_sequence"][0] + index * batch, batch)
