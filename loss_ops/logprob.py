"""Selected log-probabilities from gathered tile statistics."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loss_ops.tile_stats import TileStats
from loss_ops.trees import fold_sum
from loss_ops.vocab_shard import VocabShard


@dataclass(frozen=True)
class Logprobs:
    """[N] float32 each: the log-probability of the taken token, and what the backward needs of the softmax.

    p[v] = exp((logit[v] - max) - log_sum).
    """

    logp_N: Tensor
    max_N: Tensor
    log_sum_N: Tensor


def pack(stats: TileStats) -> Tensor:
    """[2 K + 1, N]: what a rank sends along TP."""
    return torch.cat((stats.max_KN, stats.sum_KN, stats.selected_N[None]))


def packed_sizes(shard: VocabShard, models: int) -> tuple[int, ...]:
    """Rows that each TP rank sends for `models` sets of logits."""
    return tuple(models * (2 * tiles + 1) for tiles in shard.tiles)


def unpack(gathered: list[Tensor], shard: VocabShard, model: int) -> tuple[Tensor, Tensor, Tensor]:
    """All tiles in global order, [K, N] maxima and sums, and the [tp, N] selected logits of each rank."""
    parts = []
    for tensor, tiles in zip(gathered, shard.tiles, strict=True):
        rows = 2 * tiles + 1
        parts.append(tensor[model * rows : (model + 1) * rows].split((tiles, tiles, 1)))
    maxima, sums, selected = (torch.cat(column) for column in zip(*parts, strict=True))
    return maxima, sums, selected


def merge(
    max_KN: Tensor, sum_KN: Tensor, selected_PN: Tensor, action_ids_N: Tensor, shard: VocabShard
) -> Logprobs:
    """Log-softmax of the taken token: (selected - max) - log(sum), float32.

    Order: tile sums are rescaled to the global maximum and folded by halves over tiles in vocabulary order. The
    selected logit is taken from the rank that owns the column, never added. An id that is no real column has no
    probability: it gives NaN, which no reduction hides.
    """
    return TileTerms.of(max_KN, sum_KN, selected_PN, action_ids_N, shard).added()


@dataclass(frozen=True)
class TileTerms:
    """What `merge` adds, [K, N] tile sums at the global maximum, and what no order of adding changes, [N] each."""

    terms_KN: Tensor
    reference_N: Tensor
    shifted_N: Tensor

    @classmethod
    def of(
        cls, max_KN: Tensor, sum_KN: Tensor, selected_PN: Tensor, action_ids_N: Tensor, shard: VocabShard
    ) -> TileTerms:
        """From the arguments of `merge`."""
        largest = max_KN.amax(dim=0)
        reference = torch.where(largest == -torch.inf, 0.0, largest)
        known = (action_ids_N >= 0) & (action_ids_N < shard.real_vocab_size)
        selected = torch.where(known, selected_PN.gather(0, owner_rank(action_ids_N, shard)[None])[0], torch.nan)
        return cls(sum_KN * (max_KN - reference).exp(), reference, selected - reference)

    def added(self, order_K: Tensor | None = None) -> Logprobs:
        """The merge, with tiles in vocabulary order, or in another."""
        log_sum = fold_sum(self.terms_KN if order_K is None else self.terms_KN[order_K], dim=0).log()
        return Logprobs(self.shifted_N - log_sum, self.reference_N, log_sum)


def owner_rank(action_ids_N: Tensor, shard: VocabShard) -> Tensor:
    """[N] the TP rank whose columns hold the id; ids outside the vocabulary go to the nearest rank."""
    if len(shard.bounds) == 1:
        return torch.zeros_like(action_ids_N)
    starts = torch.tensor([start for start, _ in shard.bounds[1:]], device=action_ids_N.device)
    return torch.bucketize(action_ids_N, starts, right=True)
