"""Checkpoints: all that a run goes on from, so that a resumed run gives the bits of one that never stopped.

Sampling is seeded by update and sample, and the reference by the first parameters, which the workload makes when
it is built; so parameters, moments and the number of the last update are enough.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from grpo_contract import InputError, Problem
from harness.system.error_text import named
from harness.workloads.language_training import LanguageWorkload

FORMAT = "grpo-training-v1"
MOMENTS = ("exp_avg", "exp_avg_sq")


def save_checkpoint(path: Path | str, workload: LanguageWorkload, update: int) -> Path:
    """Write the state after update `update`; replaces `path` in one step."""
    target = Path(path)
    tensors = {f"parameter:{name}": each for name, each in workload.parameters().items()}
    steps: dict[str, float] = {}
    for name, each in workload.trained.items():
        state = workload.optimizer.state.get(each, {})
        tensors |= {f"{moment}:{name}": state[moment] for moment in MOMENTS if moment in state}
        if "step" in state:
            steps[name] = float(state["step"])
    held = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    about = {"format": FORMAT, "update": str(update), "steps": json.dumps(steps), "settings": _settings(workload)}
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        save_file(held, temporary, metadata=about)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return target


def load_checkpoint(path: Path | str, workload: LanguageWorkload) -> int:
    """Put a saved state into a workload built alike, and return the number of its last update.

    Raises InputError for another file, other settings, or parameters of other names or shapes.
    """
    tensors, about = _read(Path(path))
    problems = _problems(Path(path), tensors, about, workload)
    if problems:
        raise InputError(problems)
    steps: dict[str, float] = json.loads(about["steps"])
    for name, each in workload.trained.items():
        each.data.copy_(tensors[f"parameter:{name}"])
        if name in steps:
            state: dict[str, Any] = workload.optimizer.state[each]
            state["step"] = torch.tensor(steps[name], dtype=torch.float32)
            for moment in MOMENTS:
                state[moment] = tensors[f"{moment}:{name}"].to(each.device)
    return int(about["update"])


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except Exception as error:
        raise InputError(Problem("input.checkpoint", str(path), "a checkpoint", named(error))) from None


def _problems(
    path: Path, tensors: dict[str, Tensor], about: dict[str, str], workload: LanguageWorkload
) -> list[Problem]:
    if about.get("format") != FORMAT:
        return [Problem("input.checkpoint", str(path), f"format {FORMAT}", about.get("format", "none"))]
    found = []
    if about["settings"] != _settings(workload):
        found.append(Problem("input.checkpoint", f"{path}: settings", _settings(workload), about["settings"]))
    for name, each in workload.trained.items():
        stored = tensors.get(f"parameter:{name}")
        if stored is None or stored.shape != each.shape:
            got = "none" if stored is None else f"shape {list(stored.shape)}"
            found.append(Problem("input.checkpoint", f"{path}: {name}", f"shape {list(each.shape)}", got))
    return found


def _settings(workload: LanguageWorkload) -> str:
    return json.dumps({name: str(value) for name, value in sorted(vars(workload.settings).items())})
