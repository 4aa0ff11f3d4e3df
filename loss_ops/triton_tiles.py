"""Tile statistics in Triton: one program owns one row of one set of logits and walks its tiles in order."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loss_ops.tile_stats import TileStats
from loss_ops.triton_kernel import Pointer, launch
from loss_ops.triton_launch import block_of, is_aligned, tile_options, unit_columns
from loss_ops.triton_math import finite_reference, merge_state
from loss_ops.vocab_shard import VocabShard


@triton.jit
def load_tile(
    row_ptr,
    lane,
    first,
    stop,
    never,
    TILE: tl.constexpr,
    FULL: tl.constexpr,
    ALIGNED: tl.constexpr,
    EVICTION: tl.constexpr,
):
    """float32 logits of the tile that starts at column `first`; -inf past the tile's or the shard's real end."""
    if FULL:
        tile = tl.load(row_ptr + first + lane, eviction_policy=EVICTION)
    else:
        column = first + lane
        real = (lane < TILE) & (column < stop)
        tile = tl.load(row_ptr + column, mask=real, other=float("-inf"), eviction_policy=EVICTION)
    if not ALIGNED:
        # Never executed (`never` is 0): a store of whole vectors makes the compiler spread the tile over
        # threads as it does for aligned rows, and so keeps the tree of the sum.
        pin = tl.multiple_of(row_ptr + never, 16)
        tl.store(pin + lane, tile, mask=(tl.zeros_like(lane) + never) > 0)
    return tile.to(tl.float32)


@triton.jit
def tile_state(tile, inverse_temperature, TEMPERED: tl.constexpr):
    """(largest raw logit, sum of exp((logit - largest) / temperature)) of one tile."""
    largest = tl.max(tile, 0)
    exponent = tile - finite_reference(largest)
    if TEMPERED:
        exponent = exponent * inverse_temperature
    return largest, tl.sum(tl.exp(exponent), 0)


@triton.jit
def row_state(
    row_ptr,
    lane,
    stop,
    tiles,
    inverse_temperature,
    never,
    max_ptr,
    sum_ptr,
    rows,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    TEMPERED: tl.constexpr,
    MERGED: tl.constexpr,
    EVICTION: tl.constexpr,
):
    """Walk the tiles of one row: store each tile's state, or (MERGED) join them in order and return the row's."""
    row_max = float("-inf")
    row_sum = 0.0
    full = stop // TILE if TILE == BLOCK else 0
    for tile in range(0, full):
        logits = load_tile(row_ptr, lane, tile * TILE, stop, never, TILE, True, ALIGNED, EVICTION)
        largest, total = tile_state(logits, inverse_temperature, TEMPERED)
        if MERGED:
            row_max, row_sum = merge_state(row_max, row_sum, largest, total, inverse_temperature)
        else:
            tl.store(max_ptr + tile * rows, largest)
            tl.store(sum_ptr + tile * rows, total)
    for tile in range(full, tiles):
        logits = load_tile(row_ptr, lane, tile * TILE, stop, never, TILE, False, ALIGNED, EVICTION)
        largest, total = tile_state(logits, inverse_temperature, TEMPERED)
        if MERGED:
            row_max, row_sum = merge_state(row_max, row_sum, largest, total, inverse_temperature)
        else:
            tl.store(max_ptr + tile * rows, largest)
            tl.store(sum_ptr + tile * rows, total)
    return row_max, row_sum


@triton.jit
def selected_logit(row_ptr, column, stop):
    """The raw logit of the taken token where this shard owns it, else 0."""
    return tl.load(row_ptr + column, mask=(column >= 0) & (column < stop), other=0.0).to(tl.float32)


@triton.jit(
    do_not_specialize=[
        "policy_ptr", "reference_ptr", "actions_ptr", "active_ptr", "out_ptr", "policy_stride",
        "reference_stride", "rows", "start", "stop", "tiles", "inverse_temperature", "never",
    ]
)  # fmt: skip
def row_states_kernel(
    policy_ptr,
    reference_ptr,
    actions_ptr,
    active_ptr,
    out_ptr,
    policy_stride,
    reference_stride,
    rows,
    start,
    stop,
    tiles,
    inverse_temperature,
    never,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    TEMPERED: tl.constexpr,
    MERGED: tl.constexpr,
):
    """States of row program_id(0) of policy or reference (program_id(1)) into `out` [models * height, rows].

    height is 2 * tiles + 1 (maxima, sums, selected logit), or 3 when MERGED. A masked row is not read.
    """
    row = tl.program_id(0).to(tl.int64)
    model = tl.program_id(1)
    rows = rows.to(tl.int64)
    logits_ptr = policy_ptr
    stride = policy_stride.to(tl.int64)
    if model == 1:
        logits_ptr = reference_ptr
        stride = reference_stride.to(tl.int64)
    row_ptr = logits_ptr + row * stride
    if ALIGNED:
        row_ptr = tl.multiple_of(row_ptr, 16)
    tiles_stored = 1 if MERGED else tiles
    max_ptr = out_ptr + (model * (2 * tiles_stored + 1)).to(tl.int64) * rows + row
    sum_ptr = max_ptr + tiles_stored * rows
    selected_ptr = sum_ptr + tiles_stored * rows
    lane = tl.arange(0, BLOCK)
    if tl.load(active_ptr + row) != 0:
        row_max, row_sum = row_state(
            row_ptr, lane, stop, tiles, inverse_temperature, never, max_ptr, sum_ptr, rows,
            TILE, BLOCK, ALIGNED, TEMPERED, MERGED, "evict_first",
        )  # fmt: skip
        if MERGED:
            tl.store(max_ptr, row_max)
            tl.store(sum_ptr, row_sum)
        column = tl.load(actions_ptr + row).to(tl.int64) - start
        tl.store(selected_ptr, selected_logit(row_ptr, column, stop))
    else:
        for tile in range(0, tiles_stored):
            tl.store(max_ptr + tile * rows, 0.0)
            tl.store(sum_ptr + tile * rows, 1.0)
        tl.store(selected_ptr, 0.0)


def launch_row_states(
    models: list[Tensor],
    action_ids_N: Tensor,
    active_N: Tensor,
    shard: VocabShard,
    inverse_temperature: float,
    out: Pointer,
    *,
    merged: bool,
) -> None:
    """Fill `out` [models * height, N] with float32 states of one or two [N, V] sets of logits, raw (untempered).

    height is 2 * num_tiles + 1, or 3 when `merged`. Logits may have any row stride; ids and mask hold N slots
    in any shape. Order: a tile is summed by one program in a layout fixed by its width; merged states are joined
    in vocabulary order.
    """
    models = [unit_columns(each) for each in models]
    policy, reference = models[0], models[-1]
    rows, block = policy.shape[0], block_of(shard.tile_width)
    launch(
        row_states_kernel,
        (rows, len(models)),
        (policy, reference, action_ids_N.contiguous(), active_N.contiguous(), out),
        (
            policy.stride(0),
            reference.stride(0),
            rows,
            shard.start,
            shard.num_real_columns,
            shard.num_tiles,
            inverse_temperature,
            0,
        ),
        (shard.tile_width, block, is_aligned(shard.tile_width, *models), inverse_temperature != 1.0, merged),
        tile_options(block),
    )


def tile_stats(
    logits_NV: Tensor, action_ids_N: Tensor, active_N: Tensor, shard: VocabShard, temperature: float
) -> TileStats:
    """The stage `tile_stats`: maxima and selected logits divided by the temperature, as the merge expects."""
    rows, tiles = logits_NV.shape[0], shard.num_tiles
    packed = torch.empty((2 * tiles + 1, rows), dtype=torch.float32, device=logits_NV.device)
    launch_row_states([logits_NV], action_ids_N, active_N, shard, 1.0 / temperature, packed, merged=False)
    maxima, sums, selected = packed.split((tiles, tiles, 1))
    if temperature != 1.0:
        maxima, selected = maxima / temperature, selected / temperature
    return TileStats(maxima, sums, selected[0])
