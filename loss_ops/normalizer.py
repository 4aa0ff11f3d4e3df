"""Normalizers: from sequence totals to scalars, and the weight of a token in the loss."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, TokenNormalizer
from loss_ops.trees import fold_sum


@dataclass(frozen=True)
class Normalization:
    """Float32. A token of sequence b weighs weight_B[b]; a scalar is fold_sum(factor_B * totals_B) / divisor."""

    weight_B: Tensor
    factor_B: Tensor | None
    divisor: Tensor

    def scalar(self, totals_B: Tensor) -> Tensor:
        """One number from sequence totals, folded by halves over num_sequences in sequence order."""
        scaled = totals_B if self.factor_B is None else totals_B * self.factor_B
        return fold_sum(scaled + 0.0, dim=0) / self.divisor


def normalization(active_tokens_B: Tensor, contract: GRPOLossContract) -> Normalization:
    """Weights of the contract's normalizer from the batch's exact integer counts.

    global_active_tokens: 1 / sum(L). per_sequence_then_mean: 1 / (L * live or all sequences), 0 where L = 0.
    fixed_constant: 1 / constant. length_power: L^(alpha - 1) / num_sequences, 0 where L = 0; the power is a
    host double, because a device's pow depends on an element's place.
    """
    counts = active_tokens_B.double()
    if contract.reduction.token_normalizer is TokenNormalizer.GLOBAL_ACTIVE_TOKENS:
        return _uniform(active_tokens_B.sum().double(), counts)
    if contract.reduction.token_normalizer is TokenNormalizer.FIXED_CONSTANT:
        constant = counts.new_full((), float(contract.reduction.fixed_constant or 0))
        return _uniform(constant, counts)
    factor, sequences = _per_sequence(active_tokens_B, counts, contract)
    return Normalization((factor / sequences).float(), factor.float(), sequences.float())


def _uniform(divisor: Tensor, like: Tensor) -> Normalization:
    return Normalization((1.0 / divisor).float().expand_as(like), None, divisor.float())


def _per_sequence(active_tokens_B: Tensor, counts: Tensor, contract: GRPOLossContract) -> tuple[Tensor, Tensor]:
    alpha = contract.reduction.alpha
    every = counts.new_full((), float(contract.geometry.num_sequences))
    if contract.reduction.token_normalizer is TokenNormalizer.LENGTH_POWER:
        assert alpha is not None
        powers = _length_powers(contract.geometry.padded_seq_len, alpha, counts.device)
        return powers[active_tokens_B], every
    live = active_tokens_B > 0
    factor = torch.where(live, 1.0 / counts.clamp_min(1.0), 0.0)
    if contract.reduction.counts_all_sequences:
        return factor, every
    return factor, live.sum().double()


@lru_cache(maxsize=64)
def _length_powers(longest: int, alpha: float, device: torch.device) -> Tensor:
    powers = [0.0, *(float(length) ** (alpha - 1.0) for length in range(1, longest + 1))]
    return torch.tensor(powers, dtype=torch.float64, device=device)
