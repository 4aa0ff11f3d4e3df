"""A rank's shard of the vocabulary, in whole tiles."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_contract import LogprobContract, ShardingSpec


@dataclass(frozen=True)
class VocabShard:
    """Columns [start, stop) of the padded vocabulary; `tiles[r]` is the number of tiles of TP rank r."""

    start: int
    stop: int
    real_vocab_size: int
    tile_width: int
    tp_rank: int
    tiles: tuple[int, ...]
    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, logprob: LogprobContract, sharding: ShardingSpec) -> VocabShard:
        """The shard that `sharding` gives this rank."""
        width = logprob.tile_width
        start, stop = sharding.vocab_shard
        return cls(
            start=start,
            stop=stop,
            real_vocab_size=logprob.real_vocab_size,
            tile_width=width,
            tp_rank=sharding.tp_rank,
            tiles=tuple(-(-(high - low) // width) for low, high in sharding.vocab_shard_bounds),
            bounds=sharding.vocab_shard_bounds,
        )

    @property
    def num_columns(self) -> int:
        """Columns of this shard, padding included."""
        return self.stop - self.start

    @property
    def num_real_columns(self) -> int:
        """Columns of this shard that take part in the softmax."""
        return max(0, min(self.stop, self.real_vocab_size) - self.start)

    @property
    def num_tiles(self) -> int:
        """Tiles of this shard."""
        return self.tiles[self.tp_rank]
