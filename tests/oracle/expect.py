"""Compares a result with a case's expected values and says, in words, all that is wrong.

Works on the oracle and on any implementation: `actual` is a mapping with the keys loss, policy_loss, kl,
per_sequence_policy, per_sequence_kl, per_sequence_active_tokens, advantages, grad and, where there are
counts, clip_counts (any of low, high, region, active). Values are numbers or arrays.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from oracle.cases import Case
from oracle.grpo import Array

FLOATS = ("loss", "policy_loss", "kl", "per_sequence_policy", "per_sequence_kl", "advantages")


def mismatches(
    case: Case, actual: Mapping[str, Any], *, rtol: float | None = None, atol: float | None = None
) -> list[str]:
    """One line per wrong value; empty when all agree. The case's own tolerances unless others are given."""
    if case.expected is None:
        raise ValueError(f"case {case.name} expects an error")
    tolerance = (case.rtol if rtol is None else rtol, case.atol if atol is None else atol)
    grad = np.asarray(actual["grad"], dtype=np.float64)
    return [
        *_float_mismatches(case.expected, actual, tolerance),
        *_count_mismatches(case.expected, actual),
        *_grad_mismatches(case.expected["grad"], grad, tolerance),
        *_padding_mismatches(grad, case.contract["real_vocab_size"]),
    ]


def _differs(actual: Any, expected: Any, tolerance: tuple[float, float]) -> bool:
    got, want = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    rtol, atol = tolerance
    return got.shape != want.shape or not np.allclose(got, want, rtol=rtol, atol=atol)


def _float_mismatches(
    expected: Mapping[str, Any], actual: Mapping[str, Any], tolerance: tuple[float, float]
) -> Iterator[str]:
    for name in FLOATS:
        if _differs(actual[name], expected[name], tolerance):
            yield f"{name}: expected {expected[name]}, got {actual[name]}"
    for name in expected.get("exact_zero", ()):
        should_be_zero = np.ravel(actual[name])[np.ravel(expected[name]) == 0]
        if (should_be_zero != 0).any():
            yield f"{name}: zeros must be exact, got {should_be_zero}"


def _count_mismatches(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterator[str]:
    name = "per_sequence_active_tokens"
    if np.asarray(actual[name]).tolist() != expected[name]:
        yield f"{name}: expected {expected[name]}, got {actual[name]}"
    if "clip_counts" not in expected or "clip_counts" not in actual:
        return
    active = sum(expected[name])
    for key, count in actual["clip_counts"].items():
        if int(count) != expected["clip_counts"][key]:
            yield f"clip_counts.{key}: expected {expected['clip_counts'][key]}, got {count}"
        elif key != "active" and _differs(count / active, expected["clip_fraction"][key], (1e-10, 0.0)):
            yield f"clip_fraction.{key}: expected {expected['clip_fraction'][key]}, got {count / active}"


def _grad_mismatches(expected: Mapping[str, Any], grad: Array, tolerance: tuple[float, float]) -> Iterator[str]:
    if bool(np.isfinite(grad).all()) != expected["finite"]:
        yield f"grad: expected finite={expected['finite']}"
    measured = {
        "abs_sum": np.abs(grad).sum(),
        "l2": np.sqrt((grad * grad).sum()),
        "row_sum_max_abs": np.abs(grad.sum(axis=-1)).max(),
    }
    for name, value in measured.items():
        if _differs(value, expected[name], tolerance):
            yield f"grad.{name}: expected {expected[name]}, got {value}"
    for sequence, token in expected["zero_rows"]:
        if (grad[sequence, token] != 0).any():
            yield f"grad[{sequence}, {token}]: expected exactly zero"
    for sequence, token, column, want in expected["entries"]:
        got = grad[sequence, token, column]
        if got != want if want == 0 else _differs(got, want, tolerance):
            yield f"grad[{sequence}, {token}, {column}]: expected {want}, got {got}"


def _padding_mismatches(grad: Array, real_vocab_size: int) -> Iterator[str]:
    if (grad[..., real_vocab_size:] != 0).any():
        yield f"grad: padding columns from {real_vocab_size} on must be exactly zero"
