"""The compared quantities of a loss call, by name."""

from __future__ import annotations

import torch
from torch import Tensor

from loss_ops.result import GRPOLossResult

GRADIENT = "grad_policy_logits"
REPLICATED = (
    "loss",
    "policy_loss",
    "kl",
    "per_sequence_policy",
    "per_sequence_kl",
    "per_sequence_active_tokens",
    "advantages",
    "clip_counts",
)


def quantities(result: GRPOLossResult, gradient: Tensor) -> dict[str, Tensor]:
    """Every quantity of one rank: replicated scalars and [num_sequences] vectors, and its [S, T, V] gradient.

    `clip_counts` is [low, high, region, active] as int64.
    """
    counts = result.clip_counts
    found = {name: getattr(result, name).detach() for name in REPLICATED if name != "clip_counts"}
    found["clip_counts"] = torch.stack([counts.low, counts.high, counts.region, counts.active])
    return {**{name: found[name] for name in REPLICATED}, GRADIENT: gradient}
