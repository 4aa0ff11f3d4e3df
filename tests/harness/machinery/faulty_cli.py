"""The command `grpo-verify` with faulty_worker.py as its ranks, and with --forked by way of fork_torchrun.py.

faulty_cli.py [--forked] ARGUMENTS... ; the fault is told by GRPO_TEST_FAULT, which the ranks inherit.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT)]
LARGEST_FILE = "GRPO_TEST_LARGEST_FILE"
# Users get 180 seconds; a test of a rank that never gets ready waits for all of it.
START_TIMEOUT = 40.0


def forked(request: Any) -> list[str]:
    return [request.python, str(HERE / "fork_torchrun.py"), str(request.ranks), *request.worker]


def main() -> int:
    from harness.cli import main as command
    from harness.launching.launch_request import LaunchRequest
    from harness.runs import run

    arguments = sys.argv[1:]
    changes: dict[str, Any] = {"module": "faulty_worker", "start_timeout": START_TIMEOUT}
    if "--forked" in arguments:
        arguments.remove("--forked")
        changes["command"] = forked
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    run.LaunchRequest = lambda *args, **more: LaunchRequest(*args, **{**more, **changes})  # type: ignore[assignment, misc]
    if LARGEST_FILE in os.environ:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = int(os.environ[LARGEST_FILE])
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())
