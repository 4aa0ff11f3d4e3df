"""What a program asks of its driver: one gather at a time.

A program is a generator: it yields a request and receives the list of all ranks' tensors, in rank order of the
axis. Real ranks answer with torch.distributed, virtual ranks in lockstep inside one process. Received tensors
may be shared between virtual ranks: they are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import Tensor

Axis = Literal["tp", "dp"]
T = TypeVar("T")
ResultT = TypeVar("ResultT")


class Gathered(list[Tensor]):
    """All ranks' tensors along an axis, in rank order. Virtual ranks of one line share one object."""

    def once(self, what: str, make: Callable[[Gathered], T]) -> T:
        """`make(self)`, computed once for all who share this object: it may use only what they have in common."""
        held: dict[str, T] = self.__dict__.setdefault("_made", {})
        if what not in held:
            held[what] = make(self)
        return held[what]


@dataclass(frozen=True)
class Gather:
    """All ranks' tensors along `axis`. `sizes[r]` is rank r's extent of dim 0; other dims are equal.

    `purpose` says what travels, for whoever watches the ranks.
    """

    axis: Axis
    tensor: Tensor
    sizes: tuple[int, ...]
    purpose: str


@dataclass(frozen=True)
class AllReduce:
    """The sum over `axis`, in whatever order the collective picks: for planted faults only."""

    axis: Axis
    tensor: Tensor
    purpose: str = "all_reduce"


Request = Gather | AllReduce
Program = Generator[Request, Gathered, ResultT]
