"""The values of a capture file, looked at before anything is launched, through numpy's memory map.

Floats are judged by their bits, because numpy has no bfloat16: with the sign bit taken away, infinity is one
bit pattern and every larger one is a nan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_contract import GRPOLossContract, InputError, Problem
from harness.inputs.capture_header import CaptureHeader, read_header

Array = NDArray[Any]
NUM_SHOWN = 3
"""Slots named for each quantity; the others are counted."""
_ROW_ELEMENTS = 1 << 22
"""Logits held in memory at a time."""


@dataclass(frozen=True)
class FloatBits:
    """How a float dtype spells infinity, and its sign bit."""

    dtype: str
    infinity: int
    sign: int

    def is_nan(self, bits: Array) -> Array:
        above: Array = (bits & ~np.array(self.sign, bits.dtype)) > self.infinity
        return above

    def is_positive_infinity(self, bits: Array) -> Array:
        return np.equal(bits, self.infinity)

    def is_negative_infinity(self, bits: Array) -> Array:
        return np.equal(bits, self.sign | self.infinity)

    def not_finite(self, bits: Array) -> Array:
        reached: Array = (bits & ~np.array(self.sign, bits.dtype)) >= self.infinity
        return reached


FLOATS = {
    "F32": FloatBits("<u4", 0x7F800000, 0x80000000),
    "BF16": FloatBits("<u2", 0x7F80, 0x8000),
    "F16": FloatBits("<u2", 0x7C00, 0x8000),
}
_STORED = {"BOOL": "u1", "U8": "u1", "I32": "<i4", "I64": "<i8"}


@dataclass(frozen=True)
class BadSlot:
    """A place in a tensor, with what stands there."""

    index: tuple[int, ...]
    got: str


def check_capture(path: Path, contract: GRPOLossContract) -> None:
    """Raise one InputError naming quantity and [sequence, token] of the first values that have no meaning.

    Looked at: logits of active slots up to the contract's real vocabulary, ids and old_logps of active
    slots, all rewards. A masked slot may hold anything. -inf is legal outside the action's column.
    """
    header = read_header(path)
    real = contract.logprob.real_vocab_size
    active = open_tensor(header, "completion_mask") != 0
    problems = [] if active.any() else [_no_active_token(active)]
    actions = np.asarray(open_tensor(header, "action_ids"))
    problems += _told("action_ids", f"an id from 0 to {real - 1}", _bad_actions(actions, active, real))
    problems += _told("old_logps", "a finite number", _bad_numbers(header, "old_logps", active))
    problems += _told("rewards", "a finite number", _bad_numbers(header, "rewards", None))
    names = ("policy_logits", "ref_logits") if header.has_reference else ("policy_logits",)
    for name in names:
        expected = f"logits with a softmax over columns 0 to {real - 1}, and not -inf at the action"
        problems += _told(name, expected, list(_bad_rows(header, name, actions, active, real)))
    if problems:
        raise InputError([Problem(p.code, f"{path}: {p.where}", p.expected, p.got) for p in problems])


def open_tensor(header: CaptureHeader, name: str) -> Array:
    """A stored tensor as a read-only memory map; floats as the integers of their bits."""
    entry = header.tensors[name]
    dtype = FLOATS[entry.dtype].dtype if entry.dtype in FLOATS else _STORED[entry.dtype]
    return np.memmap(header.path, dtype=dtype, mode="r", offset=entry.start, shape=entry.shape)


def _no_active_token(active: Array) -> Problem:
    got = f"no active tokens in {active.shape[0]} x {active.shape[1]} slots"
    return Problem("input.no_active_tokens", "completion_mask", "an active token in the batch", got)


def _bad_actions(actions: Array, active: Array, real: int) -> list[BadSlot]:
    wrong = active & ((actions < 0) | (actions >= real))
    return [BadSlot((int(s), int(t)), str(actions[s, t])) for s, t in np.argwhere(wrong)]


def _bad_numbers(header: CaptureHeader, name: str, active: Array | None) -> list[BadSlot]:
    bits, kind = np.asarray(open_tensor(header, name)), FLOATS[header.tensors[name].dtype]
    wrong = kind.not_finite(bits) & (True if active is None else active)
    places = (tuple(map(int, place)) for place in np.argwhere(wrong))
    return [BadSlot(place, _spelled(kind, bits[place])) for place in places]


def _bad_rows(header: CaptureHeader, name: str, actions: Array, active: Array, real: int) -> Iterator[BadSlot]:
    stored, kind = open_tensor(header, name), FLOATS[header.tensors[name].dtype]
    step = max(1, _ROW_ELEMENTS // real)
    for sequence in range(active.shape[0]):
        tokens = np.flatnonzero(active[sequence])
        for start in range(0, len(tokens), step):
            chunk = tokens[start : start + step]
            rows = np.asarray(stored[sequence, chunk, :real])
            for row, got in _undefined(kind, rows, actions[sequence, chunk]):
                yield BadSlot((sequence, int(chunk[row])), got)


def _undefined(kind: FloatBits, rows: Array, actions: Array) -> Iterator[tuple[int, str]]:
    """Rows whose softmax is undefined or gives the action no probability, with the reason."""
    if not kind.not_finite(rows).any():
        return
    wrong = kind.is_nan(rows) | kind.is_positive_infinity(rows)
    low = kind.is_negative_infinity(rows)
    for row in range(len(rows)):
        action = int(actions[row])
        if wrong[row].any():
            column = int(wrong[row].argmax())
            yield row, f"{_spelled(kind, rows[row, column])} in column {column}"
        elif low[row].all():
            yield row, "-inf in every column"
        elif 0 <= action < rows.shape[1] and low[row, action]:
            yield row, f"-inf in column {action}, the action"


def _spelled(kind: FloatBits, bits: Any) -> str:
    if kind.is_nan(np.asarray(bits)):
        return "nan"
    return "inf" if kind.is_positive_infinity(np.asarray(bits)) else "-inf"


def _told(quantity: str, expected: str, bad: list[BadSlot]) -> list[Problem]:
    shown = [
        Problem("input.value", f"{quantity}{list(slot.index)}", expected, slot.got) for slot in bad[:NUM_SHOWN]
    ]
    if len(bad) > NUM_SHOWN:
        got = f"{len(bad) - NUM_SHOWN} more such places"
        shown.append(Problem("input.value", quantity, expected, got))
    return shown
