"""All quantities of one rank, against the baseline and from run to run, in global coordinates."""

from __future__ import annotations

from torch import Tensor

from grpo_contract import InputError, Problem, ShardingSpec
from harness.comparing.comparison import compare
from harness.comparing.drift import Drift
from harness.comparing.frame import Frame
from harness.ranks.candidate import baseline_part, is_part, origin_of

Quantities = dict[str, Tensor]


def compare_rank(expected: Quantities, got: Quantities, sharding: ShardingSpec, frame: Frame) -> tuple[Drift, ...]:
    """One Drift for each quantity that this rank holds; `expected` holds the baseline's whole ones.

    Raises InputError where the two are not the same quantities.
    """
    if expected.keys() != got.keys():
        there, here = ", ".join(expected), ", ".join(got)
        raise InputError(Problem("input.result", "the op's result", f"{there}, as at 1x1", here))
    return tuple(
        compare(
            name,
            baseline_part(name, expected[name], value, sharding),
            value,
            origin_of(name, value, sharding),
            sharded=is_part(name, value, sharding),
            frame=frame,
        )
        for name, value in got.items()
    )


def compare_runs(first: Quantities, again: Quantities, sharding: ShardingSpec, run: int) -> list[Drift]:
    """Quantities in which a later run, number `run`, differs from the first; nothing when they repeat."""
    found = [
        compare(f"{name} (run {run})", first[name], again[name], origin_of(name, again[name], sharding),
                sharded=is_part(name, again[name], sharding))
        for name in first
    ]  # fmt: skip
    return [drift for drift in found if drift.mismatched]
