"""The header of a capture file, judged without torch: which tensors there are, their dtypes and shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_contract import InputError, Problem
from harness.inputs.capture_metadata import metadata_problems
from harness.inputs.safetensors_header import TensorEntry, read_entries

FORMAT = "grpo-capture-v1"
LOGITS = ("F32", "BF16", "F16")
DTYPES: dict[str, tuple[str, ...]] = {
    "policy_logits": LOGITS,
    "ref_logits": LOGITS,
    "action_ids": ("I64", "I32"),
    "old_logps": LOGITS,
    "rewards": LOGITS,
    "completion_mask": ("BOOL", "U8", "I32", "I64"),
}
"""The tensors of a capture with the dtypes they may have."""
SHAPES = {"ref_logits": 3, "action_ids": 2, "old_logps": 2, "rewards": 1, "completion_mask": 2}
"""How many of policy_logits' dims [B, T, V] each other tensor has."""


@dataclass(frozen=True)
class CaptureHeader:
    """What a capture file says about itself; see `read_header`."""

    path: Path
    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sequences, padded sequence length, vocabulary columns."""
        num_sequences, padded_seq_len, columns = self.tensors["policy_logits"].shape
        return num_sequences, padded_seq_len, columns

    @property
    def has_reference(self) -> bool:
        """Whether reference logits are stored."""
        return "ref_logits" in self.tensors

    @property
    def group_boundaries(self) -> tuple[int, ...]:
        """Offsets of the groups."""
        return tuple(json.loads(self.metadata["group_boundaries"]))


def read_header(path: Path) -> CaptureHeader:
    """Read and judge a capture's header. Raises one InputError that names everything wrong with the file."""
    header = CaptureHeader(path, *read_entries(path))
    problems = header_problems(header)
    if problems:
        raise InputError([_placed(path, problem) for problem in problems])
    return header


def header_problems(header: CaptureHeader) -> list[Problem]:
    """What is wrong with the metadata, and with which tensors there are, their dtypes and shapes."""
    policy = header.tensors.get("policy_logits")
    shape = policy.shape if policy is not None and len(policy.shape) == 3 else None
    return [*_format_problems(header), *_tensor_problems(header), *metadata_problems(header.metadata, shape)]


def _format_problems(header: CaptureHeader) -> list[Problem]:
    got = header.metadata.get("format", "nothing")
    return [] if got == FORMAT else [Problem("input.format", "metadata format", FORMAT, str(got))]


def _tensor_problems(header: CaptureHeader) -> list[Problem]:
    found = []
    for name, dtypes in DTYPES.items():
        entry = header.tensors.get(name)
        if entry is None:
            if name != "ref_logits":
                found.append(Problem("input.missing", name, "a tensor", "no such tensor"))
        elif entry.dtype not in dtypes:
            found.append(Problem("input.dtype", name, f"dtype {' or '.join(dtypes)}", entry.dtype))
    return [*found, *_reference_dtype(header), *_shape_problems(header)]


def _reference_dtype(header: CaptureHeader) -> list[Problem]:
    policy, ref = (header.tensors.get(name) for name in ("policy_logits", "ref_logits"))
    if policy is None or ref is None or policy.dtype == ref.dtype or ref.dtype not in LOGITS:
        return []
    return [Problem("input.dtype", "ref_logits", f"dtype {policy.dtype}, as policy_logits has", ref.dtype)]


def _shape_problems(header: CaptureHeader) -> list[Problem]:
    policy = header.tensors.get("policy_logits")
    if policy is None:
        return []
    if len(policy.shape) != 3 or 0 in policy.shape:
        expected = "shape [B, T, V], none of them 0"
        return [Problem("input.shape", "policy_logits", expected, str(list(policy.shape)))]
    found = []
    for name, num_dims in SHAPES.items():
        entry, expected_shape = header.tensors.get(name), policy.shape[:num_dims]
        if entry is not None and entry.shape != expected_shape:
            expected = f"shape {list(expected_shape)} (policy_logits is {list(policy.shape)})"
            found.append(Problem("input.shape", name, expected, str(list(entry.shape))))
    return found


def _placed(path: Path, problem: Problem) -> Problem:
    return Problem(problem.code, f"{path}: {problem.where}", problem.expected, problem.got)
