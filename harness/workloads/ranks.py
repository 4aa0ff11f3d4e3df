"""What a training program asks of its ranks, and the driver that answers on a real one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

from loss_ops.gather import Gathered, Program, Request
from loss_ops.real_ranks import RealRanks

T = TypeVar("T")


@dataclass(frozen=True)
class Exchange:
    """A one-dimensional tensor cut into one piece per DP rank (`send` elements each); piece r goes to rank r.

    The answer is what every rank sent here, in rank order (`receive` elements each).
    """

    tensor: Tensor
    send: tuple[int, ...]
    receive: tuple[int, ...]
    purpose: str = "gradient pieces"


TrainingProgram = Generator[Request | Exchange, Gathered, T]


@dataclass(frozen=True)
class Place:
    """A rank among the DP ranks of a training run."""

    rank: int = 0
    degree: int = 1


class RealDriver:
    """Runs a training program on this process; `group` holds the DP ranks and may be None for one rank.

    `on_collective` is called with a collective's purpose just before it.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, on_collective: Callable[[str], None] | None = None
    ) -> None:
        self.group, self.on_collective = group, on_collective
        self._ranks = RealRanks(None, group, on_collective)

    def run(self, program: TrainingProgram[T]) -> T:
        """Answer every request until the program returns."""
        answer: Gathered | None = None
        while True:
            try:
                request = next(program) if answer is None else program.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer = self._exchange(request) if isinstance(request, Exchange) else self._ranks.run(_ask(request))

    def _exchange(self, request: Exchange) -> Gathered:
        if self.group is None or self.group.size() == 1:
            return Gathered([request.tensor])
        if self.on_collective is not None:
            self.on_collective(request.purpose)
        received = request.tensor.new_empty(sum(request.receive))
        dist.all_to_all_single(
            received, request.tensor.contiguous(), list(request.receive), list(request.send), group=self.group
        )
        return Gathered(received.split(list(request.receive)))


def _ask(request: Request) -> Program[Gathered]:
    return (yield request)
