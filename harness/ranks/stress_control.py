"""The control of --stress: an op that depends on timing for certain, run as the op under test is run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_contract import ShardingSpec
from harness.comparing.comparison import compare
from harness.comparing.drift import Drift
from harness.ranks.candidate import is_part, origin_of
from harness.ranks.stress import other_timing

Quantities = dict[str, Tensor]


def disturbed_repeats(
    run_once: Callable[[], Quantities], repeat: int, sharding: ShardingSpec, rank: int, device: torch.device
) -> tuple[Drift, ...]:
    """The first disturbed run that differs from the undisturbed one, quantity by quantity; else the last.

    `repeat` counts all runs, the undisturbed one among them, and is at least 2. All are run, whatever they show: a
    rank that stopped early would leave the others waiting.
    """
    first = run_once()
    drifts: tuple[Drift, ...] = ()
    for number in range(1, repeat):
        with other_timing(number, rank, device):
            again = run_once()
        if not any(drift.mismatched for drift in drifts):
            drifts = _drifts(first, again, sharding)
    return drifts


def _drifts(first: Quantities, again: Quantities, sharding: ShardingSpec) -> tuple[Drift, ...]:
    return tuple(
        compare(name, value, again[name], origin_of(name, value, sharding), sharded=is_part(name, value, sharding))
        for name, value in first.items()
    )
