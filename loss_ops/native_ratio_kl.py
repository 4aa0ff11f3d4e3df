"""The dense policy ratio and KL penalty op."""

from __future__ import annotations

from torch import Tensor

from grpo_contract import KLEstimator, ShardingSpec
from loss_ops.inputs import Slots, active_slots
from loss_ops.native_loss import contract_for_dense
from loss_ops.real_ranks import RealRanks
from loss_ops.stages import NATIVE_STAGES, Stages
from loss_ops.token_terms import kl_penalty, policy_ratio
from loss_ops.vocab_logprob import SelectedLogprob
from loss_ops.vocab_shard import VocabShard


class NativeRatioKLOp:
    """Policy ratio and KL penalty per token from dense logits, on one device."""

    def __init__(self, stages: Stages = NATIVE_STAGES) -> None:
        self.stages = stages

    def __call__(
        self,
        policy_logits: Tensor,
        ref_logits: Tensor,
        action_ids: Tensor,
        completion_mask: Tensor | None,
        old_logps: Tensor,
        *,
        kl_estimator: str = "k3",
        temperature: float = 1.0,
        vocab_size: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(ratio, kl), each [B, T] float32 and differentiable in `policy_logits` [B, T, V] only.

        ratio = exp(logp - old_logp), 1 in masked slots; kl by `kl_estimator` (see `kl_penalty`), 0 there. Masked
        slots may hold anything. Raises ContractError or InputError for shapes that do not fit.
        """
        active = active_slots(completion_mask, action_ids)
        groups = [0, policy_logits.shape[0]]
        contract = contract_for_dense(
            policy_logits, group_boundaries=groups, vocab_size=vocab_size, advantage="mean_only"
        )
        sharding = ShardingSpec.even(1, 1, contract=contract)
        shard = VocabShard.of(contract.logprob, sharding)
        slots = Slots(action_ids.flatten().long(), active.flatten(), shard, temperature)
        policy, reference = (
            SelectedLogprob.apply(logits, slots, self.stages, RealRanks(), sharding).view(active.shape)
            for logits in (policy_logits, ref_logits.detach())
        )
        kl, _ = kl_penalty(policy, reference, active, KLEstimator(kl_estimator))
        return policy_ratio(policy, old_logps.detach(), active), kl + 0.0
