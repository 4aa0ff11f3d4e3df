"""The tensors of one call on one rank, in the shapes that all stages use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, ShardingSpec
from loss_ops.vocab_shard import VocabShard


@dataclass(frozen=True)
class Slots:
    """The N token slots of a rank as the vocabulary stages see them."""

    action_ids_N: Tensor
    active_N: Tensor
    shard: VocabShard
    temperature: float


@dataclass(frozen=True)
class LossInputs:
    """One rank's part of the batch (S owned sequences, T = padded_seq_len, N = S * T, V owned columns)."""

    policy_logits_NV: Tensor
    ref_logits_NV: Tensor | None
    action_ids_ST: Tensor
    old_logps_ST: Tensor
    rewards_S: Tensor
    active_ST: Tensor
    contract: GRPOLossContract
    sharding: ShardingSpec

    @cached_property
    def slots(self) -> Slots:
        """This rank's slots, flat, with its part of the vocabulary."""
        return Slots(
            self.action_ids_ST.flatten(),
            self.active_ST.flatten(),
            VocabShard.of(self.contract.logprob, self.sharding),
            self.contract.objective.temperature,
        )

    @property
    def sequence_sizes(self) -> tuple[int, ...]:
        """Sequences of each DP rank."""
        return tuple(stop - start for start, stop in self.sharding.sequence_shard_bounds)


def active_slots(completion_mask: Tensor | None, action_ids: Tensor) -> Tensor:
    """Boolean mask of the slots that count: all of them without a mask, else where it is not 0."""
    if completion_mask is None:
        return torch.ones_like(action_ids, dtype=torch.bool)
    return completion_mask != 0


def flat_rows(logits: Tensor) -> Tensor:
    """[N, V] view of [N, V] or [S, T, V] logits."""
    return logits.flatten(0, -2)
