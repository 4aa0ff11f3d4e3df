"""The header of a capture file, read and judged without torch and without touching the tensors' bytes.

A safetensors file is an 8-byte little-endian length, that many bytes of JSON, and the tensors' bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from grpo_contract import InputError, KLEstimator, Problem
from harness.system.regular_file import unreadable_kind

FORMAT = "grpo-capture-v1"
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
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
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class TensorEntry:
    """A stored tensor: dtype by its safetensors name, shape, and its first and last byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int = 0
    stop: int = 0


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
    content, data_start, size = _raw_header(path)
    metadata = content.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _refusal(path, "safetensors metadata", repr(metadata))
    tensors = {name: _entry(path, name, entry, data_start) for name, entry in content.items()}
    _check_extent(path, tensors, data_start, size)
    header = CaptureHeader(path, tensors, metadata)
    problems = header_problems(header)
    if problems:
        raise InputError([_placed(path, problem) for problem in problems])
    return header


def header_problems(header: CaptureHeader) -> list[Problem]:
    """What is wrong with the metadata, and with which tensors there are, their dtypes and shapes."""
    return [*_format_problems(header), *_tensor_problems(header), *_metadata_problems(header)]


def _raw_header(path: Path) -> tuple[dict[str, Any], int, int]:
    try:
        if kind := unreadable_kind(path):
            raise _refusal(path, "a readable capture file", kind)
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 10 or length > min(size - 8, _LONGEST_HEADER):
                got = f"{size} bytes, with a header of {length}" if size >= 8 else f"{size} bytes"
                raise _refusal(path, "a safetensors file", f"{got}: cut off, or another format")
            content = json.loads(file.read(length))
    except FileNotFoundError:
        raise _refusal(path, "a capture file", "no such file") from None
    except OSError as error:
        raise _refusal(path, "a readable capture file", error.strerror or str(error)) from None
    except InputError:
        raise
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or a number or a nesting beyond all reason
        raise _refusal(path, "a safetensors file", "a header that is not JSON") from None
    if not isinstance(content, dict):
        raise _refusal(path, "a safetensors file", "a header that is not a JSON object")
    return content, 8 + length, size


def _entry(path: Path, name: str, entry: Any, data_start: int) -> TensorEntry:
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        counts = (*shape, start, stop)
        sound = dtype not in ITEM_BYTES or stop - start == math.prod(shape) * ITEM_BYTES[dtype]
        if all(type(count) is int and count >= 0 for count in counts) and sound:
            return TensorEntry(str(dtype), shape, data_start + start, data_start + stop)
    except (TypeError, KeyError, ValueError):
        pass
    raise _refusal(path, f"a sound header entry for tensor {name!r}", json.dumps(entry)[:200])


def _check_extent(path: Path, tensors: Mapping[str, TensorEntry], data_start: int, size: int) -> None:
    spans = sorted((entry.start, entry.stop) for entry in tensors.values())
    edges = [(data_start, data_start), *spans]
    if any(before[1] != after[0] for before, after in pairwise(edges)):
        raise _refusal(path, "tensors that lie one behind the other", "a gap or an overlap")
    if edges[-1][1] != size:
        got = f"{size} bytes{': cut off' if size < edges[-1][1] else ''}"
        raise _refusal(path, f"a file of {edges[-1][1]} bytes, as its header says", got)


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


def _metadata_problems(header: CaptureHeader) -> list[Problem]:
    policy = header.tensors.get("policy_logits")
    shape = policy.shape if policy is not None and len(policy.shape) == 3 else None
    found = _boundary_problems(header, shape[0] if shape else None)
    columns = shape[2] if shape else None
    size = header.metadata.get("real_vocab_size")
    if size is not None and not _is_count(str(size), columns):
        expected = f"an integer from 1 to {columns or 'the number of columns'}"
        found.append(Problem("input.metadata", "metadata real_vocab_size", expected, str(size)))
    for name in ("beta", "clip_eps", "temperature"):
        text = header.metadata.get(name)
        if text is not None and not _is_finite(text):
            found.append(Problem("input.metadata", f"metadata {name}", "a finite number", str(text)))
    kl, known = header.metadata.get("kl_estimator"), [each.value for each in KLEstimator]
    if kl is not None and kl not in known:
        expected = f"one of {', '.join(known)}"
        found.append(Problem("input.metadata", "metadata kl_estimator", expected, str(kl)))
    return found


def _boundary_problems(header: CaptureHeader, num_sequences: int | None) -> list[Problem]:
    text = header.metadata.get("group_boundaries")
    try:
        edges = json.loads(text or "null")
    except (ValueError, TypeError, RecursionError):
        edges = None
    if isinstance(edges, list) and edges and all(type(edge) is int for edge in edges):
        rises = all(low < high for low, high in pairwise(edges))
        if len(edges) > 1 and edges[0] == 0 and rises and num_sequences in (None, edges[-1]):
            return []
    expected = f"a JSON list of offsets that rise from 0 to {num_sequences or 'the number of sequences'}"
    got = "nothing" if text is None else str(text)[:80]
    return [Problem("input.groups", "metadata group_boundaries", expected, got)]


def _is_count(text: str, most: int | None) -> bool:
    return text.isdecimal() and len(text) < 19 and 1 <= int(text) <= (most or int(text))


def _is_finite(text: object) -> bool:
    try:
        return math.isfinite(float(str(text)))
    except ValueError:
        return False


def _refusal(path: Path, expected: str, got: str) -> InputError:
    return InputError(Problem("input.file", str(path), expected, got))


def _placed(path: Path, problem: Problem) -> Problem:
    return Problem(problem.code, f"{path}: {problem.where}", problem.expected, problem.got)
