"""Tile statistics in PyTorch: the maximum and the sum of exponentials of each vocabulary tile.

Shapes: N token slots of the rank, V columns of its shard, K tiles of its shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from loss_ops.trees import fold_sum
from loss_ops.vocab_shard import VocabShard

CHUNK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}


@dataclass(frozen=True)
class TileStats:
    """Per tile and slot, float32, at the contract's temperature.

    `max_KN` is the largest logit of the tile's real columns (-inf in a tile of padding), `sum_KN` the sum of
    exp(logit - max), `selected_N` the logit of the taken token where this shard owns it and 0 elsewhere.
    """

    max_KN: Tensor
    sum_KN: Tensor
    selected_N: Tensor


def row_chunks(logits_NV: Tensor) -> Iterator[slice]:
    """Slices of rows small enough that their float32 work copies stay in cache; chunks change no bit."""
    rows, columns = logits_NV.shape
    step = max(1, CHUNK_ELEMENTS.get(logits_NV.device.type, 1 << 22) // max(1, columns))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def scaled_logits(logits_NV: Tensor, active_N: Tensor, shard: VocabShard, temperature: float) -> Tensor:
    """float32 logits / temperature; 0 in masked rows and -inf in padding columns, whatever they held."""
    real = shard.num_real_columns
    scaled = torch.where(active_N[:, None], logits_NV.float(), 0.0)
    if temperature != 1.0:
        scaled = scaled / temperature
    if real < shard.num_columns:
        scaled[:, real:] = -torch.inf
    return scaled


def tile_stats(
    logits_NV: Tensor, action_ids_N: Tensor, active_N: Tensor, shard: VocabShard, temperature: float
) -> TileStats:
    """Maximum and sum of exponentials of every tile of this shard.

    Order: inside a tile the columns are folded by halves (`fold_sum`), padded to the tile's width with zeros.
    A masked row is read as zeros. float16, bfloat16 or float32 logits, any row stride.
    """
    rows = logits_NV.shape[0]
    out = torch.empty((2, shard.num_tiles, rows), dtype=torch.float32, device=logits_NV.device)
    for chunk in row_chunks(logits_NV):
        scaled = scaled_logits(logits_NV[chunk], active_N[chunk], shard, temperature)
        out[0, :, chunk], out[1, :, chunk] = _chunk_stats(scaled, shard)
    selected = selected_logits(logits_NV, action_ids_N, active_N, shard, temperature)
    return TileStats(out[0], out[1], selected)


def _chunk_stats(scaled_NV: Tensor, shard: VocabShard) -> tuple[Tensor, Tensor]:
    short = shard.num_tiles * shard.tile_width - shard.num_columns
    padded = torch.nn.functional.pad(scaled_NV, (0, short), value=-torch.inf) if short else scaled_NV
    tiles = padded.unflatten(1, (shard.num_tiles, shard.tile_width))
    largest = tiles.amax(dim=2)
    reference = torch.where(largest == -torch.inf, 0.0, largest)
    return largest.T, fold_sum((tiles - reference[:, :, None]).exp_(), dim=2).T


def selected_logits(
    logits_NV: Tensor, action_ids_N: Tensor, active_N: Tensor, shard: VocabShard, temperature: float
) -> Tensor:
    """[N] float32 logit / temperature of the taken token where this shard owns it, 0 elsewhere."""
    owned = active_N & owns(action_ids_N, shard)
    column = torch.where(owned, action_ids_N - shard.start, 0)
    picked = logits_NV.gather(1, column[:, None])[:, 0].float()
    picked = torch.where(owned, picked, 0.0)
    return picked / temperature if temperature != 1.0 else picked


def owns(action_ids_N: Tensor, shard: VocabShard) -> Tensor:
    """Whether the taken token is a real column of this shard."""
    real_stop = shard.start + shard.num_real_columns
    return (action_ids_N >= shard.start) & (action_ids_N < real_stop)
