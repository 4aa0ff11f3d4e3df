"""Several ranks on one GPU over NCCL: asked for by name, allowed from NCCL 2.30 on. Imports no torch by itself.

NCCL documents NCCL_MULTI_RANK_GPU_ENABLE as experimental: where it hangs or fails, lower NCCL_MAX_CTAS.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

from grpo_contract import InputError, Problem
from harness.launching.launch_request import import_path
from harness.planning.planned import Transport

SHARED_NCCL: Transport = "nccl-shared-gpu"
FLAG = "--shared-transport"
OLDEST = (2, 30)
"""The first NCCL that lets ranks share a GPU."""
SWITCH = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
Version = tuple[int, ...]
_PROBE_SECONDS = 60
_PROBE = (
    "from harness.launching.shared_nccl import loaded_version; import json; print(json.dumps(loaded_version()))"
)


def version_problem(version: Version | None, where: str = FLAG) -> Problem | None:
    """What stands against ranks that share a GPU over the NCCL that torch has, or has not (None)."""
    if version is not None and version >= OLDEST:
        return None
    got = "torch without NCCL" if version is None else f"NCCL {'.'.join(map(str, version))}"
    expected = (
        f"NCCL {'.'.join(map(str, OLDEST))} or newer, which lets ranks share a GPU (gloo, the default, needs none)"
    )
    return Problem("request.shared_transport", where, expected, got)


def probed_version() -> Version | None:
    """The version that ranks started now would have, from a process of its own: the parent never imports torch."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(import_path(os.environ.get("PYTHONPATH", "")))}
    command = [sys.executable, "-P", "-c", _PROBE]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True, env=environment
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return tuple(found) if found else None


def loaded_version() -> Version | None:
    """The version of the NCCL that torch loaded, else of the one it was built with; None without any."""
    import torch

    if torch.version.cuda is None:
        return None
    try:
        built = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError):
        return None
    return _library_version() or tuple(built)


def _library_version() -> Version | None:
    """What the shared library says that is loaded already; a torch that holds its own NCCL has loaded none."""
    code = ctypes.c_int()
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        failed = library.ncclGetVersion(ctypes.byref(code))
    except (OSError, AttributeError):
        return None
    number = code.value
    return None if failed or not number else (number // 10_000, number // 100 % 100, number % 100)


def switch_on(transport: Transport) -> None:
    """On a rank, before NCCL reads its settings: allow what the plan asks for, or raise InputError."""
    if transport != SHARED_NCCL:
        return
    if problem := version_problem(loaded_version()):
        raise InputError(problem)
    os.environ.update(SWITCH)
