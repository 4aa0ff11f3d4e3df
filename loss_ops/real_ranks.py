"""Real ranks: a program's requests answered by torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from loss_ops.gather import AllReduce, Axis, Gather, Gathered, Program, Request, ResultT


@dataclass(frozen=True)
class RealRanks:
    """Drives one program with this process's groups; an axis of degree 1 needs none.

    `on_collective` is called with a collective's purpose just before it, so that a watcher knows how far a
    rank came.
    """

    tp_group: dist.ProcessGroup | None = None
    dp_group: dist.ProcessGroup | None = None
    on_collective: Callable[[str], None] | None = None

    def run(self, program: Program[ResultT]) -> ResultT:
        """Answer every request until the program returns."""
        answer: Gathered | None = None
        try:
            while True:
                request = program.send(answer) if answer is not None else next(program)
                answer = self._answer(request)
        except StopIteration as stop:
            result: ResultT = stop.value
            return result

    def _group(self, axis: Axis) -> dist.ProcessGroup | None:
        return self.tp_group if axis == "tp" else self.dp_group

    def _answer(self, request: Request) -> Gathered:
        group = self._group(request.axis)
        if group is None or group.size() == 1:
            return Gathered([request.tensor])
        if self.on_collective is not None:
            self.on_collective(request.purpose)
        if isinstance(request, AllReduce):
            total = request.tensor.clone()
            dist.all_reduce(total, group=group)
            return Gathered([total])
        return _all_gather(request, group)


def _all_gather(request: Gather, group: dist.ProcessGroup) -> Gathered:
    largest = max(request.sizes)
    tensor = request.tensor.contiguous()
    if tensor.shape[0] < largest:
        tensor = torch.cat((tensor, tensor.new_zeros(largest - tensor.shape[0], *tensor.shape[1:])))
    received = [torch.empty_like(tensor) for _ in request.sizes]
    dist.all_gather(received, tensor, group=group)
    return Gathered(part[:size] for part, size in zip(received, request.sizes, strict=True))


def process_group(group: Any) -> dist.ProcessGroup | None:
    """The process group of a group or of a one-dimensional DeviceMesh; None stays None."""
    held: dist.ProcessGroup | None = group.get_group() if hasattr(group, "get_group") else group
    return held
