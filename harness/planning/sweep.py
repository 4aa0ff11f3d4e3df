"""Sweeps: built-in batches multiplied over padded length, groups and raggedness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from harness.settings.batch_spec import BatchSpec
from harness.settings.sweep_axes import parse


def swept(spec: BatchSpec, sweeps: Sequence[str]) -> tuple[BatchSpec, ...]:
    """Every combination of the swept values, each a batch named after them; the spec itself without sweeps."""
    axes = dict(axis for text in sweeps for axis in parse(text))
    points = product(*([(key, value) for value in values] for key, values in axes.items()))
    return tuple(_moved(spec, point) for point in points)


def _moved(spec: BatchSpec, point: Iterable[tuple[str, str]]) -> BatchSpec:
    changes = dict(point)
    if not changes:
        return spec
    update: dict[str, object] = {"name": f"{spec.name}[{','.join(f'{k}={v}' for k, v in changes.items())}]"}
    if "seq_len" in changes:
        update["padded_seq_len"] = int(changes["seq_len"])
    if "raggedness" in changes:
        update["raggedness"] = changes["raggedness"]
    if "groups" in changes:
        update["group_boundaries"] = GROUPS[changes["groups"]](spec.num_sequences)
    return spec.model_copy(update=update)


def aligned(num_sequences: int) -> tuple[int, ...]:
    """Two equal groups, or one of an odd number: they end where the shards of DP 2 do."""
    half = num_sequences // 2
    return (0, half, num_sequences) if num_sequences % 2 == 0 and half > 1 else (0, num_sequences)


def straddling(num_sequences: int) -> tuple[int, ...]:
    """A group that is cut by the shards of every DP degree above 1, behind a smaller one where there is room."""
    first = max(2, num_sequences // 2 - 1)
    return (0, first, num_sequences) if num_sequences - first > 1 else (0, num_sequences)


GROUPS = {"aligned": aligned, "straddle": straddling}
