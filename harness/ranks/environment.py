"""What a result depends on beside the contract: builds, device, settings. Recorded, not prescribed."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from grpo_contract import InputError
from harness.files.rundir import EXPECTED_ENVIRONMENT, OP_LAUNCH, RunDir, read_text
from harness.launching.shared_nccl import loaded_version
from harness.provenance.differences import differences, shown

CPU_INFO = Path("/proc/cpuinfo")
CPU_NUMBERS = {"cpu family": "family", "model": "model", "CPU implementer": "implementer", "CPU part": "part"}
RECORDED = ("NCCL_", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "TORCH_ALLOW_TF32", "NVIDIA_TF32_OVERRIDE")


def environment(device: torch.device, launch: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Versions, device and numeric settings of this process, and an op's launch, as plain JSON values."""
    return {
        **({OP_LAUNCH: dict(launch)} if launch else {}),
        "device": device.type,
        "device_name": device_name(device),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "nccl": _nccl() if device.type == "cuda" else None,
        "num_threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(RECORDED)},
    }


def check_environment(rundir: RunDir, found: Mapping[str, Any]) -> None:
    """Raise InputError, on every rank alike, when results kept in `rundir` come from another environment."""
    text = read_text(rundir.path / EXPECTED_ENVIRONMENT)
    if text is None:
        return
    here = {"environment": json.loads(json.dumps(found))}
    problems = list(differences("input.environment", {"environment": json.loads(text)}, here))
    if problems:
        raise InputError(shown(problems))


def device_name(device: torch.device) -> str:
    """The GPU's model, or the processor's: libraries choose code by it, so that bits follow from the model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return ", ".join((*processor(CPU_INFO), torch.backends.cpu.get_cpu_capability()))


def processor(info: Path) -> list[str]:
    """Name, family and model of the first processor in a file like /proc/cpuinfo, as far as it tells them."""
    lines = (read_text(info) or "").partition("\n\n")[0].splitlines()
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    numbers = [f"{label} {told[name]}" for name, label in CPU_NUMBERS.items() if told.get(name)]
    return [told.get("model name") or f"{platform.machine()} CPU", *numbers]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nccl() -> str | None:
    version = loaded_version()
    return None if version is None else ".".join(map(str, version))
