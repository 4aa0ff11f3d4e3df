"""A GRPO loss as trainers commonly write it: right to rounding, and different at every layout.

The vocabulary is reduced by all_reduce of the maximum, the exponential sum and the taken logit, the tokens by a
local sum and an all_reduce. Run it under the command to see where that shows:

    grpo-verify --op examples.all_reduce_loss:all_reduce_loss --tp 2 --dp 2
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from grpo_contract import GRPOLossContract, ShardingSpec


def all_reduce_loss(
    policy_local_logits: Tensor,
    action_ids: Tensor,
    old_logps: Tensor,
    rewards: Tensor,
    *,
    contract: GRPOLossContract,
    sharding: ShardingSpec,
    completion_mask: Tensor,
    ref_local_logits: Tensor,
    tp_group: dist.ProcessGroup | None = None,
    dp_group: dist.ProcessGroup | None = None,
) -> dict[str, Tensor]:
    """Token-mean GRPO with k3 KL on logits [S, T, V]; returns this rank's sequences and the global loss."""
    objective = contract.objective
    logp = _logprobs(policy_local_logits, action_ids, contract, sharding, tp_group)
    with torch.no_grad():
        ref_logp = _logprobs(ref_local_logits, action_ids, contract, sharding, tp_group)
        advantages = _advantages(rewards, contract, sharding, dp_group)
    mask = completion_mask.bool()
    ratio = (logp - old_logps).masked_fill(~mask, 0).exp()
    clipped = ratio.clamp(1 - objective.clip_eps_low, 1 + objective.clip_eps_high)
    policy = -torch.minimum(ratio * advantages[:, None], clipped * advantages[:, None])
    difference = (ref_logp - logp).masked_fill(~mask, 0)
    kl = difference.exp() - difference - 1
    per_sequence_policy, per_sequence_kl = (policy * mask).sum(1), (kl * mask).sum(1)
    tokens = _summed(mask.sum().float(), dp_group)
    policy_loss = _Summed.apply(per_sequence_policy.sum(), dp_group) / tokens
    mean_kl = _Summed.apply(per_sequence_kl.sum(), dp_group) / tokens
    return {
        "loss": policy_loss + objective.beta * mean_kl,
        "policy_loss": policy_loss,
        "kl": mean_kl,
        "per_sequence_policy": per_sequence_policy,
        "per_sequence_kl": per_sequence_kl,
        "advantages": advantages,
    }


def _logprobs(
    logits: Tensor,
    action_ids: Tensor,
    contract: GRPOLossContract,
    sharding: ShardingSpec,
    group: dist.ProcessGroup | None,
) -> Tensor:
    start, stop = sharding.vocab_shard
    real = min(stop, contract.logprob.real_vocab_size) - start
    scaled = logits[..., :real].float() / contract.objective.temperature
    largest = _summed(scaled.detach().amax(-1), group, dist.ReduceOp.MAX)
    total = _Summed.apply((scaled - largest[..., None]).exp().sum(-1), group)
    owned = (action_ids >= start) & (action_ids < start + real)
    column = torch.where(owned, action_ids - start, 0)
    taken = scaled.gather(-1, column[..., None])[..., 0] * owned
    return _Summed.apply(taken, group) - largest - total.log()


def _advantages(
    rewards: Tensor, contract: GRPOLossContract, sharding: ShardingSpec, group: dist.ProcessGroup | None
) -> Tensor:
    whole = rewards.new_zeros(contract.geometry.num_sequences)
    start, stop = sharding.sequence_shard
    whole[start:stop] = rewards
    whole = _summed(whole, group)
    parts = [whole[low:high] for low, high in contract.geometry.groups]
    normalized = [(part - part.mean()) / part.std(unbiased=False).clamp_min(1e-6) for part in parts]
    return torch.cat(normalized)[start:stop]


def _summed(value: Tensor, group: dist.ProcessGroup | None, how: Any = dist.ReduceOp.SUM) -> Tensor:
    if group is not None:
        value = value.clone()
        dist.all_reduce(value, how, group=group)
    return value


class _Summed(torch.autograd.Function):
    """all_reduce whose gradient is the identity, as in vocabulary-parallel cross entropy."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        return _summed(value, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
