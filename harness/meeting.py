"""How ranks find each other: through a file in the private run directory, or through a user's own torchrun."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from harness.guard import LAUNCHER_PID
from harness.rundir import RunDir


def meeting_place(rundir: RunDir) -> dict[str, Any]:
    """Arguments of `init_process_group` that say where the ranks meet.

    Under the launcher a file that only this user can read: torch's store over TCP listens on every network
    interface. Under a user's own torchrun its store, which is the only one that spans nodes.
    """
    if LAUNCHER_PID not in os.environ:
        return {"init_method": "env://"}
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(rundir.store), world)  # type: ignore[attr-defined]
    return {"store": store, "rank": rank, "world_size": world}
