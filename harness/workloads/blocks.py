"""How a batch is cut: blocks of sequences that are computed together, ranks in whole blocks, parts of a rank."""

from __future__ import annotations

from functools import lru_cache

from grpo_contract import GRPOLossContract, InputError, Problem, ShardingError, ShardingSpec, even_bounds
from harness.workloads.ranks import Place


def num_blocks(contract: GRPOLossContract, block: int) -> int:
    """Blocks of the batch; the last may be short."""
    return -(-contract.geometry.num_sequences // block)


def block_bounds(contract: GRPOLossContract, block: int, place: Place) -> tuple[tuple[int, int], ...]:
    """The blocks of each DP rank, as even as they go."""
    return even_bounds(num_blocks(contract, block), place.degree)


def sharding_of(contract: GRPOLossContract, block: int, place: Place) -> ShardingSpec:
    """This rank's place: whole blocks of sequences, all columns. Raises ShardingError when blocks are too few."""
    return _sharding(contract.geometry.num_sequences, contract.logprob.padded_vocab_size, block, place)


@lru_cache(maxsize=256)
def _sharding(sequences: int, columns: int, block: int, place: Place) -> ShardingSpec:
    blocks = -(-sequences // block)
    if place.degree > blocks:
        expected = f"1 to {blocks}, the number of blocks of {block} sequences"
        raise ShardingError(Problem("sharding.degree", "dp_degree", expected, str(place.degree)))
    bounds = even_bounds(blocks, place.degree)
    return ShardingSpec(
        dp_rank=place.rank,
        dp_degree=place.degree,
        vocab_shard_bounds=((0, columns),),
        sequence_shard_bounds=tuple((a * block, min(b * block, sequences)) for a, b in bounds),
    )


def part_bounds(start: int, stop: int, micro_batch: int | None, block: int) -> list[tuple[int, int]]:
    """Parts of a rank's sequences: `micro_batch` each, whole blocks; the last may be short."""
    size = stop - start if micro_batch is None else micro_batch
    if size % block and micro_batch is not None:
        expected = f"a multiple of the block of {block} sequences"
        raise InputError(Problem("input.micro_batch", "micro_batch", expected, str(micro_batch)))
    return [(each, min(each + size, stop)) for each in range(start, stop, size)]
