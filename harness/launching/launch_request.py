"""A launch as asked for: how many ranks of which module, how long, by which command, in which environment."""

from __future__ import annotations

import os
import socket
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.files.rundir import RunDir
from harness.provenance.foreign_folders import HOME
from harness.system.processes import MARK

USER_PATH = "GRPO_VERIFY_USER_PATH"
# Settings of an enclosing torchrun or of the user's shell that would steer ours, error files among them;
# LOGLEVEL could silence the lines that tell victims from culprits.
_FOREIGN = ("PET_", "TORCHELASTIC_", "TORCH_ELASTIC_")
_FOREIGN_NAMES = {"PYTHON_EXEC", "LOGLEVEL", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True)
class LaunchRequest:
    """One launch of `ranks` processes of `python -m module RUN_DIR *args`.

    `timeout` is the longest, in seconds, that all ranks together may go without any sign of progress;
    `start_timeout` is the longest until every rank has reported `ready`. `env` is added to the workers'
    environment and wins. `command` builds the command line that starts the ranks.
    """

    ranks: int
    rundir: RunDir
    timeout: float = 120.0
    start_timeout: float = 180.0
    module: str = "harness.worker"
    args: tuple[str, ...] = ()
    python: str = sys.executable
    env: Mapping[str, str] = field(default_factory=dict)
    command: Callable[[LaunchRequest], Sequence[str]] = field(default_factory=lambda: torchrun_command)

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"ranks: expected at least 1, got {self.ranks}")
        if min(self.timeout, self.start_timeout) <= 0:
            raise ValueError(f"timeouts: expected above 0, got {self.timeout} and {self.start_timeout}")

    @property
    def worker(self) -> tuple[str, ...]:
        """The module and its arguments, as they follow `-m`."""
        return (self.module, str(self.rundir.path), *self.args)


def torchrun_command(request: LaunchRequest) -> list[str]:
    """One torchrun on this node, without restarts, ranks' output in `logs/`.

    Its rendezvous is a file: over TCP it listens on every interface, and what it receives it unpickles.
    """
    options = {
        "--nnodes": 1,
        "--nproc-per-node": request.ranks,
        "--rdzv-backend": "c10d",
        "--rdzv-conf": "store_type=file",
        "--rdzv-endpoint": request.rundir.rendezvous,
        "--rdzv-id": request.rundir.path.name,
        "--local-addr": "localhost",
        "--max-restarts": 0,
        # Slow enough that a dead rank stays readable for the launcher before torchrun collects it.
        "--monitor-interval": 0.25,
        "--log-dir": request.rundir.logs,
        "--redirects": 3,
    }
    flags = [text for name, value in options.items() for text in (name, str(value))]
    return [request.python, "-m", "torch.distributed.run", *flags, "-m", *request.worker]


def worker_environment(request: LaunchRequest, mark: str) -> dict[str, str]:
    """The environment of the launched command and so of every rank.

    The folder that holds the running `harness` comes first on the import path unless it is installed; the
    user's folder is handed over in GRPO_VERIFY_USER_PATH, for `append_user_path`. One thread a rank, because
    the number of threads changes the order of sums. gloo and NCCL stay on the loopback device, whatever the
    user's shell says for runs over several nodes, and torchrun shares no store over TCP.
    """
    kept = {name: value for name, value in os.environ.items() if not _is_foreign(name)}
    return {
        **kept,
        **dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), _loopback()),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONPATH": os.pathsep.join(import_path(kept.get("PYTHONPATH", ""))),
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        USER_PATH: os.getcwd(),
        **request.env,
        MARK: mark,
    }


def append_user_path() -> None:
    """Put the user's folder last on this rank's import path, where it shadows nothing."""
    folder = os.environ.get(USER_PATH)
    if folder and folder not in sys.path:
        sys.path.append(folder)


def _is_foreign(name: str) -> bool:
    return name.startswith(_FOREIGN) or name in _FOREIGN_NAMES


def _loopback() -> str:
    names = {name for _, name in socket.if_nameindex()}
    return "lo0" if "lo0" in names else "lo"


def import_path(inherited: str) -> list[str]:
    """The entries of PYTHONPATH for a process of ours: our folder unless it is installed, then those inherited."""
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    own = [] if HOME in installed else [str(HOME)]
    return own + [os.path.abspath(entry) for entry in inherited.split(os.pathsep) if entry]
