"""How ranks find each other: through a file in the private run directory, or through a user's own torchrun."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from harness.files.rundir import RunDir
from harness.system.guard import has_launcher

START_UP_SECONDS = 300


def collective_timeout(timeout: float) -> timedelta:
    """How long one collective may take, of a run whose own deadline is `timeout` seconds.

    The launcher's deadline is the one that counts, so torch's only has to be later; without a launcher
    torch's is the only one.
    """
    return timedelta(seconds=timeout + (START_UP_SECONDS if has_launcher() else 0))


def meeting_place(rundir: RunDir, timeout: float) -> dict[str, Any]:
    """Arguments of `init_process_group` that say where the ranks meet.

    Under the launcher a file that only this user can read: torch's store over TCP listens on every network
    interface. Under a user's own torchrun its store, which is the only one that spans nodes. `timeout`
    is the run's own, in seconds.
    """
    if not has_launcher():
        return {"init_method": "env://", "timeout": collective_timeout(timeout)}
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(rundir.store), world)  # type: ignore[attr-defined]
    return {"store": store, "rank": rank, "world_size": world, "timeout": collective_timeout(timeout)}
