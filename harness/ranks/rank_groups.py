"""Process groups of a rank: joined once, one pair for every layout of the plan."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from harness.files.rundir import ENVIRONMENT, RunDir, write_atomic
from harness.launching.status import Phase, StatusWriter
from harness.planning.planned import Transport
from harness.ranks.candidate import Groups
from harness.ranks.environment import environment
from harness.ranks.meeting import collective_timeout, meeting_place

Layout = tuple[int, int]
BACKENDS = {
    "gloo": "gloo",
    "gloo-shared-gpu": "gloo",
    "nccl": "cpu:gloo,cuda:nccl",
    "nccl-shared-gpu": "cpu:gloo,cuda:nccl",
    "virtual": "gloo",
}
# What is left of a shared device's memory is the context of each rank, which torch does not count.
SHARED_MEMORY = 0.9


class Seats(Protocol):
    """What a plan says about where its ranks sit. `timeout` is the run's, in seconds."""

    @property
    def device(self) -> Literal["cpu", "cuda"]: ...

    @property
    def transport(self) -> Transport: ...

    @property
    def ranks_per_device(self) -> int: ...

    @property
    def timeout(self) -> float: ...


def device_of(plan: Seats, local_rank: int) -> torch.device:
    """The device of a rank: ranks that share one are neighbours."""
    if plan.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", local_rank // plan.ranks_per_device)


@contextmanager
def session(
    plan: Seats,
    device: torch.device,
    rundir: RunDir,
    layouts: Iterable[Layout],
    status: StatusWriter,
    launch: Mapping[str, Any] | None = None,
) -> Iterator[dict[Layout, Groups]]:
    """Join, give this rank's groups in each layout, and leave together with all ranks once the work is done.

    Rank 0 writes down what it runs on, and how its op launches kernels. A rank whose work raises leaves alone, for
    the launcher to see.
    """
    join(plan, device, rundir)
    groups = layout_groups(layouts, dist.get_rank(), collective_timeout(plan.timeout))
    if dist.get_rank() == 0:
        write_atomic(rundir.path / ENVIRONMENT, json.dumps(environment(device, launch)))
    status.update(phase=Phase.READY)
    yield groups
    dist.barrier()
    dist.destroy_process_group()


def join(plan: Seats, device: torch.device, rundir: RunDir) -> None:
    """Join the run's ranks. Control messages go over gloo, tensors over the plan's transport."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if plan.ranks_per_device > 1:
            torch.cuda.set_per_process_memory_fraction(SHARED_MEMORY / plan.ranks_per_device, device)
    dist.init_process_group(BACKENDS[plan.transport], **meeting_place(rundir, plan.timeout))


def layout_groups(layouts: Iterable[Layout], rank: int, timeout: timedelta) -> dict[Layout, Groups]:
    """This rank's groups in each layout. Every rank calls this with the same layouts, in the same order.

    `timeout` is that of one collective: a new group does not take over the world's.
    """
    return {layout: _groups(layout, rank, timeout) for layout in sorted(set(layouts))}


def _groups(layout: Layout, rank: int, timeout: timedelta) -> Groups:
    tp, dp = layout
    lines_tp = [[d * tp + t for t in range(tp)] for d in range(dp)] if tp > 1 else []
    lines_dp = [[d * tp + t for d in range(dp)] for t in range(tp)] if dp > 1 else []
    return Groups(_own_group(lines_tp, rank, timeout), _own_group(lines_dp, rank, timeout))


def _own_group(lines: list[list[int]], rank: int, timeout: timedelta) -> dist.ProcessGroup | None:
    made = [(line, dist.new_group(line, timeout=timeout)) for line in lines]
    return next((group for line, group in made if rank in line), None)
