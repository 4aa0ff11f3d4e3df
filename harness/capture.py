"""Captures: real batches saved to a file. Reading back as tensors, and writing, need torch; the rest does not."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_contract import (
    AdvantageKind,
    GRPOLossContract,
    InputError,
    KLEstimator,
    Problem,
    SequenceDenominator,
    StdEpsMode,
    TokenNormalizer,
)
from harness.inputs.capture_check import check_capture
from harness.inputs.capture_header import DTYPES, FORMAT, CaptureHeader, header_problems, read_header
from harness.inputs.safetensors_header import TensorEntry
from harness.settings.config_problems import suggestion

if TYPE_CHECKING:
    import torch

    from harness.settings.run_config import RunConfig

__all__ = [
    "CaptureHeader",
    "capture_contract",
    "check_capture",
    "load_capture",
    "read_header",
    "save_capture",
]

_DTYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_SETTINGS = {"kl_estimator": "kl", "token_normalizer": "normalizer"}
_NUMBERS = ("beta", "temperature", "clip_eps_low", "clip_eps_high", "fixed_constant", "alpha", "std_eps")
_WORDS: dict[str, type[StrEnum]] = {
    "kl_estimator": KLEstimator,
    "token_normalizer": TokenNormalizer,
    "sequence_denominator": SequenceDenominator,
    "advantage": AdvantageKind,
    "std_eps_mode": StdEpsMode,
}
_KNOWN = ("real_vocab_size", "clip_eps", *_NUMBERS, *_WORDS)
"""Metadata that says what the contract is; any other is free text."""
_JUDGED = ("beta", "temperature", "kl_estimator")
"""Those that the header check judges."""
_MISTAKEN = (
    "determinism_scope", "epsilon", "epsilon_high", "epsilon_low", "kl", "kl_beta", "kl_coef", "normalizer",
    "num_vocab_tiles", "vocab_size",
)  # fmt: skip
"""Names a contract or another trainer has, and a capture has not: kept as free text they would say nothing."""
_NORMALIZERS_OWN = ("fixed_constant", "alpha", "sequence_denominator")


def capture_contract(header: CaptureHeader, config: RunConfig) -> tuple[GRPOLossContract, tuple[str, ...]]:
    """The contract of a capture, and notes on every value of its metadata that the user replaced.

    Raises ContractError for a contract that cannot hold, InputError when beta needs a reference that the
    file lacks and for metadata that is nearly, but not, a field of the contract.
    """
    if problems := _field_problems(header.metadata):
        raise InputError(
            [Problem(each.code, f"{header.path}: {each.where}", each.expected, each.got) for each in problems]
        )
    stored, given = _metadata_fields(header), config.contract_fields()
    default = TokenNormalizer.GLOBAL_ACTIVE_TOKENS
    wanted, held = given.get("token_normalizer"), stored.get("token_normalizer", default)
    notes = []
    if wanted is not None and wanted != held:
        # What belongs to a normalizer goes with it.
        gone = {name: stored.pop(name) for name in _NORMALIZERS_OWN if name in stored and name not in given}
        by = f"token_normalizer {_plain(wanted)} ({_origin('token_normalizer', config)})"
        notes += [f"{by} leaves out {name} {_plain(value)} of the capture" for name, value in gone.items()]
    notes += [
        f"{name} {_plain(given[name])} ({_origin(name, config)}) replaces {_plain(value)} of the capture"
        for name, value in stored.items()
        if name in given and given[name] != value
    ]
    num_sequences, padded_seq_len, columns = header.shape
    contract = GRPOLossContract.for_batch(
        num_sequences=num_sequences,
        padded_seq_len=padded_seq_len,
        vocab_size=int(header.metadata.get("real_vocab_size", columns)),
        padded_vocab_size=columns,
        group_boundaries=header.group_boundaries,
        num_vocab_tiles=config.tiles,
        dtype=_DTYPE_NAMES[header.tensors["policy_logits"].dtype],
        **(stored | given),
    )
    missing = contract.call_problems(has_reference=header.has_reference)
    if missing:
        where, beta = f"{header.path}: ref_logits", _plain(contract.objective.beta)
        expected = f"reference logits (beta is {beta}; without a reference give --beta 0)"
        raise InputError(Problem("input.missing", where, expected, "no such tensor"))
    return contract, tuple(notes)


def _metadata_fields(header: CaptureHeader) -> dict[str, Any]:
    meta = header.metadata
    fields: dict[str, Any] = {}
    if "clip_eps" in meta:
        fields["clip_eps_low"] = fields["clip_eps_high"] = float(meta["clip_eps"])
    fields |= {name: float(meta[name]) for name in _NUMBERS if name in meta}
    fields |= {name: meta[name] for name in _WORDS if name in meta}
    return fields


def _field_problems(metadata: Mapping[str, str]) -> list[Problem]:
    """Values of contract fields that the header check does not know, and keys that only look like one."""
    found = []
    for name, text in metadata.items():
        if name in _JUDGED or (name not in _KNOWN and not _looks_known(name)):
            continue
        if name not in _KNOWN:
            expected = f"one of {', '.join(_KNOWN)}, or free text under another name{suggestion(name, [*_KNOWN])}"
            found.append(Problem("input.metadata", "metadata", expected, name))
        elif name in _NUMBERS and not _is_finite(text):
            found.append(Problem("input.metadata", f"metadata {name}", "a finite number", str(text)))
        elif name in _WORDS and text not in (choices := [each.value for each in _WORDS[name]]):
            found.append(Problem("input.metadata", f"metadata {name}", f"one of {', '.join(choices)}", str(text)))
    return found


def _looks_known(name: str) -> bool:
    plain = name.lower().replace("-", "_")
    return plain in _MISTAKEN or bool(get_close_matches(plain, _KNOWN, n=1, cutoff=0.8))


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except (ValueError, TypeError):
        return False


def _origin(name: str, config: RunConfig) -> str:
    return config.where(_SETTINGS.get(name, name))


def _plain(value: object) -> str:
    return str(getattr(value, "value", value))


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
    texts = {name: _plain(value) for name, value in metadata.items() if value is not None}
    texts |= {"format": FORMAT, "group_boundaries": json.dumps([int(edge) for edge in group_boundaries])}
    target = Path(path)
    entries = {name: TensorEntry(_code(value), tuple(value.shape)) for name, value in tensors.items()}
    problems = [*header_problems(CaptureHeader(target, entries, texts)), *_field_problems(texts)]
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
