"""Usual mistakes of trainers, planted to show that a comparison of trajectories sees them."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

import torch

from grpo_contract import TokenNormalizer
from loss_ops.fixed_batch import FixedBatch


class Mistake(StrEnum):
    """What is normalized by the wrong tokens. Right where all shares weigh the same, wrong for a token mean."""

    LOCAL_MEAN = "local_mean"
    """each rank normalizes its own sequences, then the gradients of the ranks are averaged"""
    MICRO_BATCH_MEAN = "micro_batch_mean"
    """each micro-batch normalizes its own sequences, then the gradients of all micro-batches are averaged"""


def mistaken(
    mistake: Mistake | None, fixed: FixedBatch, part: tuple[int, int], parts: int, degree: int
) -> tuple[FixedBatch, float]:
    """What a part is normalized by, and the factor on its gradient: (fixed, 1) without a mistake.

    With one, only the tokens of the rank's or of the part's own sequences count, and the gradient is divided by
    the number of shares that are averaged.
    """
    if mistake is None:
        return fixed, 1.0
    rows, shares = (fixed.rows, degree) if mistake is Mistake.LOCAL_MEAN else (part, degree * parts)
    counts = torch.zeros_like(fixed.active_tokens_B)
    counts[slice(*rows)] = fixed.active_tokens_B[slice(*rows)]
    return replace(fixed, active_tokens_B=counts), _sequences_factor(fixed, rows) / shares


def _sequences_factor(fixed: FixedBatch, rows: tuple[int, int]) -> float:
    """A normalizer that divides by the number of sequences divides by the share's own."""
    reduction, sequences = fixed.contract.reduction, fixed.contract.geometry.num_sequences
    by_all = reduction.token_normalizer is TokenNormalizer.LENGTH_POWER or reduction.counts_all_sequences
    return sequences / (rows[1] - rows[0]) if by_all else 1.0
