"""Reads and writes capture files without torch, byte for byte the same on each run.

The safetensors layout is an 8-byte little-endian length, a JSON header, and the tensors' bytes. Its usual
writer orders string metadata anew in each process, which would change a file's hash; this one sorts it.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oracle.grpo import Array

_DTYPES: dict[str, Any] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "BOOL": "?"}


@dataclass(frozen=True)
class Capture:
    """Stored arrays by name, with their safetensors dtype names; bfloat16 is kept as its uint16 bits."""

    stored: dict[str, Array]
    dtypes: dict[str, str]
    metadata: dict[str, str]

    def array(self, name: str) -> Array | None:
        """A tensor as numpy has it, bfloat16 widened exactly to float32; None where it is absent."""
        if name not in self.stored:
            return None
        value = self.stored[name]
        return (value.astype("<u4") << 16).view("<f4") if self.dtypes[name] == "BF16" else value

    def inputs(self) -> tuple[Any, Array | None, Any, Any, Any, Any]:
        """The tensors in the order that the loss takes them."""
        names = ("policy_logits", "ref_logits", "action_ids", "old_logps", "rewards", "completion_mask")
        policy, ref, actions, old, rewards, mask = (self.array(name) for name in names)
        return policy, ref, actions, old, rewards, mask

    def group_boundaries(self) -> tuple[int, ...]:
        """Offsets of the groups, the last one being the number of sequences."""
        return tuple(json.loads(self.metadata["group_boundaries"]))


def read_capture(path: Path) -> Capture:
    """Read every tensor of a capture."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    metadata = header.pop("__metadata__", {})
    stored = {name: _view(raw, start, entry) for name, entry in header.items()}
    return Capture(stored, {name: entry["dtype"] for name, entry in header.items()}, metadata)


def write_capture(path: Path, capture: Capture) -> None:
    """Write a capture; widest dtypes first, so that each tensor is aligned, then by name."""
    names = sorted(capture.stored, key=lambda name: (-capture.stored[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(capture.metadata.items()))}
    offset = 0
    for name in names:
        value = capture.stored[name]
        end = offset + value.nbytes
        header[name] = {
            "dtype": capture.dtypes[name],
            "shape": list(value.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    parts = [len(text).to_bytes(8, "little"), text, *(capture.stored[name].tobytes() for name in names)]
    path.write_bytes(b"".join(parts))


def sha256_of(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _view(raw: bytes, start: int, entry: dict[str, Any]) -> Array:
    lo, hi = entry["data_offsets"]
    flat = np.frombuffer(raw[start + lo : start + hi], dtype=_DTYPES[entry["dtype"]])
    return flat.reshape(entry["shape"])
