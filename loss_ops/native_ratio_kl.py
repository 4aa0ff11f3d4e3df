"""The dense policy ratio and KL penalty op."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_contract import ShardingSpec, error_from
from loss_ops.loss_call import LossCall
from loss_ops.native_loss import contract_for_dense
from loss_ops.real_ranks import RealRanks
from loss_ops.stages import NATIVE_STAGES, Stages
from loss_ops.token_terms import kl_penalty, policy_ratio
from loss_ops.vocab_logprob import SelectedLogprob


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
        slots may hold anything. Reads ids and old log-probabilities, and so waits for the device. Raises
        ContractError or InputError with every problem found.
        """
        contract = contract_for_dense(
            policy_logits,
            group_boundaries=[0, *policy_logits.shape[:1]],
            vocab_size=vocab_size,
            advantage="mean_only",
            kl_estimator=kl_estimator,
            temperature=temperature,
        )
        sharding = ShardingSpec.even(1, 1, contract=contract)
        rewards = policy_logits.new_zeros(policy_logits.shape[0], dtype=torch.float32)
        call = LossCall(
            policy_logits, action_ids, old_logps, rewards, contract, sharding, completion_mask, ref_logits
        )
        problems = call.structure_problems() or call.value_problems()
        if problems:
            raise error_from(problems)
        inputs = call.inputs()
        active = inputs.active_ST
        policy, reference = (
            SelectedLogprob.apply(logits, inputs.slots, self.stages, RealRanks(), sharding).view(active.shape)
            for logits in (policy_logits, ref_logits.detach())
        )
        kl, _ = kl_penalty(policy, reference, active, contract.objective.kl_estimator)
        return policy_ratio(policy, inputs.old_logps_ST, active), kl + 0.0
