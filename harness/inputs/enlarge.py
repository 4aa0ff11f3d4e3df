"""Built-in batches made large enough for a layout: at least one tile and one sequence a rank."""

from __future__ import annotations

from grpo_contract import default_num_vocab_tiles
from grpo_contract.logprob import tile_width
from harness.settings.batch_spec import BatchSpec


def enlarged(spec: BatchSpec, tp: int, dp: int) -> tuple[BatchSpec, str | None]:
    """`spec`, or a larger one of the same tile width and group sizes, and a note that says so."""
    tiles = spec.num_vocab_tiles or default_num_vocab_tiles(spec.padded_vocab_size)
    update = _more_tiles(spec, tiles, tp) | _more_sequences(spec, dp)
    if not update:
        return spec, None
    larger = spec.model_copy(update=update)
    sizes = f"{larger.num_sequences} sequences and {larger.num_vocab_tiles or tiles} vocabulary tiles"
    return larger, f"batch {spec.name} enlarged to {sizes}, so that every rank of TP {tp} x DP {dp} owns some"


def _more_tiles(spec: BatchSpec, tiles: int, tp: int) -> dict[str, object]:
    if tp <= tiles:
        return {}
    columns = tp * tile_width(spec.padded_vocab_size, tiles)
    padding = spec.padded_vocab_size - spec.real_vocab_size
    return {"num_vocab_tiles": tp, "padded_vocab_size": columns, "real_vocab_size": columns - padding}


def _more_sequences(spec: BatchSpec, dp: int) -> dict[str, object]:
    if dp <= spec.num_sequences:
        return {}
    edges = list(spec.group_boundaries)
    size = edges[-1] - edges[-2]
    while dp - edges[-1] >= 2 * size:
        edges.append(edges[-1] + size)
    # The last group takes what is left, so that none is too small to have a spread.
    return {"num_sequences": dp, "group_boundaries": (*edges, dp) if dp - edges[-1] > 1 else (*edges[:-1], dp)}
