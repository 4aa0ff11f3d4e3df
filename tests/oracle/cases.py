"""Loads the case files: inputs as arrays, the contract, and what must come out.

A case file is JSON. Every number in it is exact in float32. An input is a nested list (with "nan", "inf" and
"-inf" as strings), null, or {"formula", "shape"}: integer arithmetic over s, t, v and r = s * T + t, then at
most one division. tests/data/README.md describes the expected values.
"""

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oracle.grpo import Array, OracleResult, OracleSettings, grpo_oracle

CASES_DIR = Path(__file__).resolve().parents[1] / "data" / "cases"

_DTYPES: Mapping[str, Any] = {
    "policy_logits": np.float32,
    "ref_logits": np.float32,
    "action_ids": np.int64,
    "old_logps": np.float32,
    "rewards": np.float32,
    "completion_mask": np.bool_,
}
_ARITHMETIC: Mapping[type, Any] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Mod: np.mod,
}
_COMPARISONS: Mapping[type, Any] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}


@dataclass(frozen=True)
class ExpectedError:
    """`kind` is contract, input or preflight; the message holds each string, ignoring case and spaces."""

    kind: str
    must_mention: tuple[str, ...]

    def missing_from(self, message: str) -> list[str]:
        """The strings that `message` should hold and does not."""
        return [text for text in self.must_mention if _squeeze(text) not in _squeeze(message)]


@dataclass(frozen=True)
class Case:
    """One case. Exactly one of `expected` and `expected_error` is set. A layout is (tp degree, dp degree)."""

    name: str
    about: str
    policy_logits: Array
    ref_logits: Array | None
    action_ids: Array
    old_logps: Array
    rewards: Array
    completion_mask: Array
    contract: dict[str, Any]
    expected: dict[str, Any] | None
    expected_error: ExpectedError | None
    rtol: float
    atol: float
    layouts: tuple[tuple[int, int], ...]
    dp_bounds: dict[int, tuple[tuple[int, int], ...]]

    def contract_fields(self) -> dict[str, Any]:
        """The contract without None and without a `sequence_denominator` that the normalizer does not use."""
        fields = {key: value for key, value in self.contract.items() if value is not None}
        if fields["token_normalizer"] != "per_sequence_then_mean":
            fields.pop("sequence_denominator", None)
        fields["group_boundaries"] = tuple(fields["group_boundaries"])
        return fields

    def inputs(self) -> tuple[Array, Array | None, Array, Array, Array, Array]:
        """The tensors in the order that the loss takes them."""
        tokens = (self.action_ids, self.old_logps, self.rewards, self.completion_mask)
        return (self.policy_logits, self.ref_logits, *tokens)


def run_oracle(case: Case) -> OracleResult:
    """The float64 answer for a case."""
    return grpo_oracle(*case.inputs(), settings=OracleSettings(**case.contract_fields()))


def case_names(folder: Path = CASES_DIR) -> list[str]:
    """Names of all cases, sorted; cheap, for parametrizing tests."""
    return sorted(path.stem for path in folder.glob("*.json"))


def load_case(name: str, folder: Path = CASES_DIR) -> Case:
    """Read one case by its name."""
    raw = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    inputs: dict[str, Any] = {key: _tensor(raw["inputs"][key], dtype) for key, dtype in _DTYPES.items()}
    error = raw.get("expected_error")
    return Case(
        name=raw["name"],
        about=raw["about"],
        **inputs,
        contract=raw["contract"],
        expected=raw.get("expected"),
        expected_error=error and ExpectedError(error["kind"], tuple(error["must_mention"])),
        rtol=raw["rtol"],
        atol=raw["atol"],
        layouts=tuple((tp, dp) for tp, dp in raw.get("layouts", [[1, 1]])),
        dp_bounds={
            int(degree): tuple((lo, hi) for lo, hi in bounds)
            for degree, bounds in raw.get("dp_bounds", {}).items()
        },
    )


def load_cases(folder: Path = CASES_DIR) -> list[Case]:
    """Read all cases, sorted by name."""
    return [load_case(name, folder) for name in case_names(folder)]


def evaluate_formula(formula: str, shape: list[int]) -> Array:
    """Values at [s], [s][t] or [s][t][v] in int64; float64 where the formula ends in a division."""
    index = dict(zip("stv", np.indices(shape, dtype=np.int64), strict=False))
    names = index | {"r": index["s"] * shape[1] + index["t"]} if "t" in index else index
    node = ast.parse(formula, mode="eval").body
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        value = _integer(node.left, names) / _integer(node.right, names)
    else:
        value = _integer(node, names)
    return np.broadcast_to(value, shape)


def _integer(node: ast.expr, names: Mapping[str, Array]) -> Array:
    """Integer arithmetic only; numpy's `%` has the sign of the divisor, so the remainder is not negative."""
    match node:
        case ast.Constant(value=int(number)):
            return np.asarray(number, dtype=np.int64)
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_integer(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return np.asarray(_ARITHMETIC[type(op)](_integer(left, names), _integer(right, names)))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            truth = _COMPARISONS[type(op)](_integer(left, names), _integer(right, names))
            return np.asarray(truth, dtype=np.int64)
    raise ValueError(f"a formula cannot hold {ast.unparse(node)!r}")


def _tensor(value: Any, dtype: Any) -> Array | None:
    """Nested lists, a formula or null; refuses a float that float32 would round."""
    if value is None:
        return None
    wide = np.float64 if dtype is np.float32 else np.int64
    if isinstance(value, dict):
        exact = evaluate_formula(value["formula"], value["shape"])
    else:
        exact = np.array(_numbers(value), dtype=wide)
    with np.errstate(over="ignore"):
        stored = exact.astype(dtype)
    if not np.array_equal(stored.astype(wide), exact, equal_nan=wide is np.float64):
        raise ValueError(f"not exact in {np.dtype(dtype).name}")
    return stored


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if isinstance(value, str) else value


def _squeeze(text: str) -> str:
    return "".join(text.lower().split())
