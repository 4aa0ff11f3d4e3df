"""A training batch as a capture file, for `grpo-verify --batch FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, InputError, Problem
from harness.capture import save_capture
from harness.workloads.training import Rollout, Update


class Dense(Protocol):
    """A workload that can give the logits of a batch."""

    block: int

    def logits(self, rollout: Rollout, start: int, stop: int) -> Tensor:
        """[S, T, V] of one block under the present parameters."""

    def reference(self, rollout: Rollout, start: int, stop: int) -> Tensor | None:
        """[S, T, V] under the reference."""


def save_update(path: Path | str, update: Update, workload: Dense) -> Path:
    """Save the batch of `update` with the parameters as they are now: after it, ratios are not 1.

    The rank must hold all sequences (one rank). Raises InputError otherwise.
    """
    rollout, geometry = update.rollout, update.rollout.contract.geometry
    sequences = geometry.num_sequences
    if len(update.old_logps) != sequences:
        expected = f"a rank with all {sequences} sequences"
        raise InputError(Problem("input.capture", "update", expected, f"one with {len(update.old_logps)}"))
    blocks = [(start, min(start + workload.block, sequences)) for start in range(0, sequences, workload.block)]
    with torch.no_grad():
        policy = torch.cat([workload.logits(rollout, *block) for block in blocks])
    return save_capture(
        path,
        policy_logits=policy,
        ref_logits=workload.reference(rollout, 0, sequences),
        action_ids=rollout.action_ids_BT,
        old_logps=update.old_logps,
        rewards=update.rewards_B,
        completion_mask=rollout.mask_BT,
        group_boundaries=geometry.group_boundaries,
        **_metadata(rollout.contract),
    )


def _metadata(contract: GRPOLossContract) -> dict[str, Any]:
    """The contract's fields as a capture keeps them."""
    objective, reduction = contract.objective, contract.reduction
    return {
        "real_vocab_size": contract.logprob.real_vocab_size,
        "beta": objective.beta,
        "clip_eps_low": objective.clip_eps_low,
        "clip_eps_high": objective.clip_eps_high,
        "temperature": objective.temperature,
        "kl_estimator": objective.kl_estimator,
        "advantage": objective.advantage.kind,
        "std_eps": objective.advantage.std_eps,
        "std_eps_mode": objective.advantage.std_eps_mode,
        "token_normalizer": reduction.token_normalizer,
        "fixed_constant": reduction.fixed_constant,
        "alpha": reduction.alpha,
        "sequence_denominator": reduction.sequence_denominator,
    }
