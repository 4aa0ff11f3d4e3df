"""Which devices there are, found without importing torch and without starting CUDA in this process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

from grpo_contract import Problem
from harness.settings.request_error import RequestError

Device = Literal["cpu", "cuda"]
# The driver's own count respects CUDA_VISIBLE_DEVICES, as torch in the workers will.
_COUNT = """
import ctypes
count = ctypes.c_int()
driver = ctypes.CDLL("libcuda.so.1")
works = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
print(count.value if works else 0)
"""


@dataclass(frozen=True)
class Machine:
    """CPU cores, CUDA devices, and whether the installed torch is built for CUDA.

    `is_here` is False for a machine that only the ranks will see.
    """

    cores: int
    cuda_devices: int
    torch_has_cuda: bool
    is_here: bool = True


class AsksForDevice(Protocol):
    """Settings that say where to run: `device` is auto, cpu or cuda, `where` tells who said so."""

    @property
    def device(self) -> str: ...

    def where(self, name: str) -> str: ...


def this_machine() -> Machine:
    """The machine this process runs on."""
    has_cuda = torch_built_for_cuda()
    return Machine(_cores(), count_cuda_devices() if has_cuda else 0, has_cuda)


def resolve_device(config: AsksForDevice, machine: Machine) -> tuple[Device, int | None]:
    """The device to run on, and how many ranks it can hold (None: the CPU sets no limit).

    Raises RequestError when CUDA was asked for by name and is not there.
    """
    if config.device == "cpu" or (config.device == "auto" and not machine.cuda_devices):
        return "cpu", None
    if machine.cuda_devices:
        return "cuda", machine.cuda_devices
    why = "no CUDA device found" if machine.torch_has_cuda else "the installed torch is built without CUDA"
    raise RequestError(Problem("request.device", config.where("device"), "a CUDA device", f"none ({why})"))


def count_cuda_devices() -> int:
    """The CUDA devices that a process started now would see; 0 without a driver."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _COUNT], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(done.stdout)


def torch_built_for_cuda() -> bool:
    """Whether the installed torch is built for CUDA, read from its version file."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise RequestError(Problem("request.torch", "torch", "an installed package", "none"))
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return True
    return re.search(r"^cuda\b[^=]*= *None", text, re.MULTILINE) is None


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
