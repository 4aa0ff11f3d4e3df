"""Captures: real batches saved to a file, and read back as tensors; only then is torch imported."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_contract import InputError, Problem
from harness.inputs.capture_fields import as_text, field_problems
from harness.inputs.capture_header import DTYPES, FORMAT, CaptureHeader, header_problems, read_header
from harness.inputs.safetensors_header import TensorEntry

if TYPE_CHECKING:
    import torch


def save_capture(
    path: Path | str,
    *,
    policy_logits: torch.Tensor,
    action_ids: torch.Tensor,
    old_logps: torch.Tensor,
    rewards: torch.Tensor,
    completion_mask: torch.Tensor,
    group_boundaries: Sequence[int],
    ref_logits: torch.Tensor | None = None,
    **metadata: object,
) -> Path:
    """Save one batch: logits [B, T, V], tokens [B, T], rewards [B], group offsets; replaces `path` in one step.

    Logits are float32, bfloat16 or float16, both alike. Ids become int64, the mask bool (floats that are exactly
    0 or 1 will do), and float64 rewards or old_logps float32, the precision the loss computes in. `metadata` is
    kept as text; real_vocab_size, clip_eps and the contract fields beta, clip_eps_low, clip_eps_high, temperature,
    kl_estimator, token_normalizer, fixed_constant, alpha, sequence_denominator, advantage, std_eps and
    std_eps_mode become defaults of the contract, and what nearly reads like one of them is refused. Raises one
    InputError with everything wrong with shapes, dtypes, a mask of other floats, or metadata, before anything is
    written.
    """
    tensors = _stored_tensors(
        policy_logits=policy_logits,
        ref_logits=ref_logits,
        action_ids=action_ids,
        old_logps=old_logps,
        rewards=rewards,
        completion_mask=completion_mask,
    )
    texts = {name: as_text(value) for name, value in metadata.items() if value is not None}
    texts |= {"format": FORMAT, "group_boundaries": json.dumps([int(edge) for edge in group_boundaries])}
    target = Path(path)
    entries = {name: TensorEntry(_code(value), tuple(value.shape)) for name, value in tensors.items()}
    problems = [*header_problems(CaptureHeader(target, entries, texts)), *field_problems(texts)]
    if (mask := tensors["completion_mask"]).is_floating_point():
        of_mask = ("input.dtype", "completion_mask")
        problems = [each for each in problems if (each.code, each.where) != of_mask] + [_mask_problem(mask)]
    if problems:
        raise InputError(problems)
    _write(target, tensors, texts)
    return target


def load_capture(path: Path | str) -> dict[str, torch.Tensor]:
    """The tensors of a capture on the CPU: ids as int64, mask as bool, the others as stored.

    Raises InputError for a file that `read_header` refuses.
    """
    import torch
    from safetensors.torch import load_file

    read_header(Path(path))
    tensors = {name: value for name, value in load_file(path).items() if name in DTYPES}
    tensors["action_ids"] = tensors["action_ids"].to(torch.int64)
    tensors["completion_mask"] = tensors["completion_mask"] != 0
    return tensors


def _stored_tensors(**tensors: torch.Tensor | None) -> dict[str, torch.Tensor]:
    import torch

    casts = {"action_ids": torch.int64, "completion_mask": torch.bool}
    stored: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        value = tensor.detach().cpu().contiguous()
        if name in casts and (not value.is_floating_point() or _is_float_mask(name, value)):
            value = value.to(casts[name])
        if name in ("rewards", "old_logps") and value.dtype is torch.float64:
            value = value.float()
        # safetensors refuses two names for one storage, as when the reference is the policy.
        stored[name] = value.clone() if value.untyped_storage().data_ptr() in seen else value
        seen.add(value.untyped_storage().data_ptr())
    return stored


def _mask_problem(mask: torch.Tensor) -> Problem:
    at = ((mask != 0) & (mask != 1)).nonzero()[0]
    expected = "bool, integers, or floats that are exactly 0 or 1"
    return Problem("input.dtype", f"completion_mask{at.tolist()}", expected, str(mask[tuple(at)].item()))


def _is_float_mask(name: str, value: torch.Tensor) -> bool:
    """Whether a mask of floats holds exact zeros and ones alone; any other one is refused by its dtype."""
    return name == "completion_mask" and bool(((value == 0) | (value == 1)).all())


def _code(tensor: torch.Tensor) -> str:
    """The safetensors name of a tensor's dtype."""
    name = str(tensor.dtype).removeprefix("torch.")
    short = {"bool": "BOOL", "bfloat16": "BF16", "uint8": "U8"}
    return short.get(name) or name.replace("float", "F").replace("uint", "U").replace("int", "I")


def _write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(descriptor)
    try:
        save_file(tensors, temporary, metadata=metadata)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
