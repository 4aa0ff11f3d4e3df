"""The dense single-device GRPO loss op."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from grpo_contract import GRPOLossContract, InputError, Problem
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.result import GRPOLossResult


class NativeGRPOLossOp:
    """GRPO loss of a dense [B, T, V] batch on one device: the sharded op's 1x1 layout, bit for bit."""

    def __init__(self) -> None:
        self.sharded = DistributedGRPOLossOp()

    def __call__(
        self,
        policy_logits: Tensor,
        ref_logits: Tensor | None,
        action_ids: Tensor,
        old_logps: Tensor,
        rewards: Tensor,
        completion_mask: Tensor | None = None,
        *,
        clip_eps: float = 0.2,
        beta: float = 0.04,
        samples_per_prompt: int | None = None,
        group_boundaries: tuple[int, ...] | list[int] | None = None,
        grad_scale: float = 1.0,
        validate: Any = "full",
        **contract_fields: Any,
    ) -> GRPOLossResult:
        """Returns a result that unpacks as `loss, policy_loss, kl`; gradients flow into `policy_logits` only.

        Shapes: logits [B, T, V]; action_ids, old_logps, completion_mask [B, T]; rewards [B]. Exactly one of
        `samples_per_prompt` and `group_boundaries` (offsets, length num_groups + 1). Further contract fields go
        by name: token_normalizer, kl_estimator, temperature, clip_eps_high, real vocabulary as `vocab_size` ...

        Raises ContractError or InputError with every problem found.
        """
        contract = contract_for_dense(
            policy_logits,
            samples_per_prompt=samples_per_prompt,
            group_boundaries=group_boundaries,
            beta=beta,
            clip_eps=clip_eps,
            **contract_fields,
        )
        return self.sharded.apply(
            policy_logits,
            action_ids,
            old_logps,
            rewards,
            contract=contract,
            completion_mask=completion_mask,
            ref_local_logits=ref_logits,
            grad_scale=grad_scale,
            validate=validate,
        )


def contract_for_dense(policy_logits: Tensor, *, vocab_size: int | None = None, **fields: Any) -> GRPOLossContract:
    """The contract of a dense batch: geometry, columns and dtype from the logits, the rest by name."""
    if policy_logits.dim() != 3:
        got = f"shape {list(policy_logits.shape)}"
        raise InputError(Problem("input.shape", "policy_logits", "shape [B, T, V]", got))
    sequences, length, columns = policy_logits.shape
    return GRPOLossContract.for_batch(
        num_sequences=sequences,
        padded_seq_len=length,
        vocab_size=columns if vocab_size is None else vocab_size,
        padded_vocab_size=columns,
        dtype=str(policy_logits.dtype).removeprefix("torch."),
        **fields,
    )
