"""The header of a safetensors file, read without torch and without touching the tensors' bytes.

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

from grpo_contract import InputError, Problem
from harness.system.regular_file import unreadable_kind

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class TensorEntry:
    """A stored tensor: dtype by its safetensors name, shape, and its first and last byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int = 0
    stop: int = 0


def read_entries(path: Path) -> tuple[dict[str, TensorEntry], dict[str, Any]]:
    """The tensors and the metadata that a header tells of. Raises InputError for what is no sound header."""
    content, data_start, size = _raw_header(path)
    metadata = content.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _refusal(path, "safetensors metadata", repr(metadata))
    tensors = {name: _entry(path, name, entry, data_start) for name, entry in content.items()}
    _check_extent(path, tensors, data_start, size)
    return tensors, metadata


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


def _refusal(path: Path, expected: str, got: str) -> InputError:
    return InputError(Problem("input.file", str(path), expected, got))
