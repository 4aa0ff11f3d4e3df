"""A global batch with its contract, and the part of it that a rank sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, ShardingSpec
from loss_ops.loss_call import LossCall


@dataclass(frozen=True)
class GlobalBatch:
    """logits [B, T, V], ids, old log-probabilities and mask [B, T], rewards [B]; reference may be None."""

    policy_logits: Tensor
    ref_logits: Tensor | None
    action_ids: Tensor
    old_logps: Tensor
    rewards: Tensor
    completion_mask: Tensor
    contract: GRPOLossContract

    def shard(self, sharding: ShardingSpec) -> LossCall:
        """The call of one rank: views of its sequences and columns, as a model would hold them."""
        rows, columns = slice(*sharding.sequence_shard), slice(*sharding.vocab_shard)
        return LossCall(
            self.policy_logits[rows, :, columns],
            self.action_ids[rows],
            self.old_logps[rows],
            self.rewards[rows],
            self.contract,
            sharding,
            self.completion_mask[rows],
            None if self.ref_logits is None else self.ref_logits[rows, :, columns],
        )

    def to(self, device: torch.device) -> GlobalBatch:
        """The same batch on another device."""
        return GlobalBatch(
            self.policy_logits.to(device),
            None if self.ref_logits is None else self.ref_logits.to(device),
            self.action_ids.to(device),
            self.old_logps.to(device),
            self.rewards.to(device),
            self.completion_mask.to(device),
            self.contract,
        )
