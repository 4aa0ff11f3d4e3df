"""A rank that plays a part from the plan instead of computing. Imports no torch.

plan.json: {"cases": [name, ...], "parts": {"1": {"case": 0, "phase": "forward", "act": "hang"}}, ...}.
A rank without a part runs every case well. Collectives are played by one file per rank and collective:
everybody waits until all files are there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness.files.rundir import RunDir
from harness.launching.launch_request import append_user_path
from harness.launching.stacks import install_stack_dump
from harness.launching.status import CaseRef, Phase, StatusWriter
from harness.system.guard import install_parent_guard

PHASES = (Phase.PREFLIGHT, Phase.FORWARD, Phase.BACKWARD, Phase.COMPARE)
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


class PlannedError(ValueError):
    """An error with a stable code."""

    code = "planned"


def hang_here() -> None:
    """The frame that must show up in the blame."""
    time.sleep(600)


def act(part: dict[str, Any], rundir: RunDir, rank: int) -> None:
    match part["act"]:
        case "hang":
            hang_here()
        case "kill":
            os.kill(os.getpid(), part.get("signal", signal.SIGKILL))
            time.sleep(600)
        case "raise":
            raise PlannedError(f"rank {rank} met [3, 17]\nsecond line")
        case "exit":
            os._exit(part["status"])
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            subprocess.Popen([sys.executable, "-c", STUBBORN, str(rundir.path)], start_new_session=True)
            hang_here()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(part["seconds"])


def meet(rundir: RunDir, rank: int, world: int, number: int, writer: StatusWriter) -> None:
    """One collective of all ranks."""
    writer.tick()
    folder = rundir.path / "meetings"
    folder.mkdir(exist_ok=True)
    (folder / f"{number}-{rank}").touch()
    while not all((folder / f"{number}-{other}").exists() for other in range(world)):
        time.sleep(0.01)


def play(rundir: RunDir, rank: int, world: int, writer: StatusWriter) -> None:
    plan = json.loads(rundir.plan.read_text())
    part = plan.get("parts", {}).get(str(rank), {})
    number = 0
    for index, name in enumerate(plan["cases"]):
        writer.update(case=CaseRef(index=index, name=name))
        for phase in PHASES:
            writer.update(phase=phase)
            if part.get("case") == index and part.get("phase") == phase:
                act(part, rundir, rank)
            meet(rundir, rank, world, number, writer)
            number += 1
        if rank == 0:
            rundir.write_case(index, json.dumps({"name": name}))


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rundir = RunDir.open(Path(sys.argv[1]))
    plan = json.loads(rundir.plan.read_text())
    if plan.get("silent") == rank:
        while not all(rundir.status(other).exists() for other in range(world) if other != rank):
            time.sleep(0.01)
        sys.exit(5)
    install_parent_guard()
    append_user_path()
    writer = StatusWriter(rundir, rank)
    install_stack_dump(rundir, rank)
    if plan.get("unready") == rank:
        hang_here()
    writer.update(phase=Phase.READY)
    (rundir.path / f"seen-{rank}.json").write_text(json.dumps({"path": sys.path, "env": dict(os.environ)}))
    try:
        play(rundir, rank, world, writer)
    except PlannedError as error:
        writer.fail(error)
        raise
    writer.update(phase=Phase.DONE)
    if plan.get("bad_end") == rank:
        os._exit(7)


if __name__ == "__main__":
    main()
