"""Planted faults that two ranks cannot show: their order matters from 3, 4 or 8 ranks on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from loss_ops import logprob
from loss_ops.gather import Gather, Program
from loss_ops.inputs import LossInputs
from loss_ops.logprob import Logprobs
from loss_ops.normalizer import normalization
from loss_ops.scalars import Scalars, scalars
from loss_ops.sequence_totals import SequenceTotals
from loss_ops.stages import Stages
from loss_ops.trees import fold_sum
from loss_ops.vocab_shard import VocabShard

Added = Callable[[Sequence[Tensor], int], Tensor]


def _partial_sums(from_degree: int, added: Added) -> Callable[[Stages], Stages]:
    """Scalars from the ranks' own sums, `added` in an order of their own; the good way below `from_degree`."""

    def faulty(totals_B: SequenceTotals, local_S: SequenceTotals, inputs: LossInputs) -> Program[Scalars]:
        degree = inputs.sharding.dp_degree
        if degree < from_degree:
            return (yield from scalars(totals_B, local_S, inputs))
        norm = normalization(totals_B.active_tokens, inputs.contract)
        mine = torch.stack([fold_sum(local_S.policy, 0), fold_sum(local_S.kl, 0)])
        parts = yield Gather("dp", mine[None], (1,) * degree, "partial sums")
        policy_loss, kl = (added([part[0] for part in parts], inputs.sharding.dp_rank) / norm.divisor).unbind()
        return Scalars(policy_loss, kl, norm.weight_B)

    return lambda base: replace(base, scalars=faulty)


def _in_ring_order(parts: Sequence[Tensor], rank: int) -> Tensor:
    total = parts[rank]
    for step in range(1, len(parts)):
        total = total + parts[(rank + step) % len(parts)]
    return total


def _in_pairs(parts: Sequence[Tensor], _rank: int) -> Tensor:
    while len(parts) > 1:
        parts = [sum(parts[index + 1 : index + 2], parts[index]) for index in range(0, len(parts), 2)]
    return parts[0]


def _reversed_tiles(
    max_KN: Tensor, sum_KN: Tensor, selected_PN: Tensor, action_ids_N: Tensor, shard: VocabShard
) -> Program[Logprobs]:
    maxima, sums = (torch.cat(each.split(shard.tiles)[::-1]) for each in (max_KN, sum_KN))
    return logprob.merge(maxima, sums, selected_PN, action_ids_N, shard)
    yield


def _bf16_wire(
    max_KN: Tensor, sum_KN: Tensor, selected_PN: Tensor, action_ids_N: Tensor, shard: VocabShard
) -> Program[Logprobs]:
    sent = sum_KN.bfloat16().float() if len(shard.tiles) >= 4 else sum_KN
    return logprob.merge(max_KN, sent, selected_PN, action_ids_N, shard)
    yield


MANY_RANK_STAGES: dict[str, Callable[[Stages], Stages]] = {
    "totals_added_in_ring_order": _partial_sums(3, _in_ring_order),
    "totals_added_in_pairs": _partial_sums(8, _in_pairs),
    "tiles_joined_in_reverse": lambda base: replace(base, merge=_reversed_tiles),
    "tile_sums_sent_as_bf16": lambda base: replace(base, merge=_bf16_wire),
}
