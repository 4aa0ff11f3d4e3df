"""All quantities of one rank against the baseline, each in its part and in global coordinates."""

from __future__ import annotations

from torch import Tensor

from grpo_contract import ShardingSpec
from harness.comparing.comparison import compare
from harness.comparing.drift import Drift
from harness.comparing.frame import Frame
from harness.ranks.candidate import baseline_part, is_part, origin_of

Quantities = dict[str, Tensor]


def compare_rank(
    expected: Quantities, got: Quantities, sharding: ShardingSpec, frame: Frame | None
) -> tuple[Drift, ...]:
    """One Drift for each quantity that this rank holds; `expected` holds the baseline's whole ones."""
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
