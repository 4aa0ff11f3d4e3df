"""Sequence totals: what of each sequence crosses a rank border, and how it travels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from loss_ops.token_terms import TokenTerms
from loss_ops.trees import masked_fold_sum

TokenSum = Callable[[Tensor, Tensor], Tensor]
CODES = ("", "policy log-probability", "reference log-probability", "ratio", "kl", "policy term")


@dataclass(frozen=True)
class SequenceTotals:
    """One entry per sequence, of a shard or of the batch.

    `policy` and `kl` are float32 sums over active tokens before any normalizer; the counts are int64.
    `code` and `token` name the first active slot that holds a non-finite value (`CODES`; 0 where none does).
    """

    policy: Tensor
    kl: Tensor
    active_tokens: Tensor
    clip_low: Tensor
    clip_high: Tensor
    code: Tensor
    token: Tensor


def token_sum(terms_ST: Tensor, active_ST: Tensor) -> Tensor:
    """[S] sums over the slots of a sequence: folded by halves over padded_seq_len, masked slots as +0.0."""
    return masked_fold_sum(terms_ST, active_ST, dim=1)


def sequence_totals(
    terms: TokenTerms,
    logp_ST: Tensor,
    ref_logp_ST: Tensor | None,
    active_ST: Tensor,
    sum_tokens: TokenSum = token_sum,
) -> SequenceTotals:
    """Reduce each sequence of the shard, float sums by `sum_tokens`, counts as integers."""
    code, token = _first_non_finite(terms, logp_ST, ref_logp_ST, active_ST)
    return SequenceTotals(
        policy=sum_tokens(terms.policy, active_ST),
        kl=sum_tokens(terms.kl, active_ST),
        active_tokens=active_ST.sum(dim=1),
        clip_low=terms.clip_low.sum(dim=1),
        clip_high=terms.clip_high.sum(dim=1),
        code=code,
        token=token,
    )


def _first_non_finite(
    terms: TokenTerms, logp_ST: Tensor, ref_logp_ST: Tensor | None, active_ST: Tensor
) -> tuple[Tensor, Tensor]:
    reference = logp_ST if ref_logp_ST is None else ref_logp_ST
    codes_ST = torch.zeros_like(active_ST, dtype=torch.int64)
    for code, values in reversed(list(enumerate((logp_ST, reference, terms.ratio, terms.kl, terms.policy), 1))):
        codes_ST = torch.where(active_ST & ~values.isfinite(), code, codes_ST)
    token = (codes_ST != 0).to(torch.uint8).argmax(dim=1)
    return codes_ST.gather(1, token[:, None])[:, 0], token


def pack(totals: SequenceTotals) -> Tensor:
    """[S, 7] int64: floats as their bits, so that one gather carries everything unchanged."""
    floats = [_bits(totals.policy), _bits(totals.kl)]
    counts = [totals.active_tokens, totals.clip_low, totals.clip_high, totals.code, totals.token]
    return torch.stack([*floats, *counts], dim=1)


def unpack(gathered: list[Tensor]) -> SequenceTotals:
    """The batch's totals, shards joined in DP-rank order."""
    columns = torch.cat(gathered).unbind(dim=1)
    return SequenceTotals(_floats(columns[0]), _floats(columns[1]), *columns[2:])


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.int32).long()


def _floats(bits: Tensor) -> Tensor:
    return bits.int().view(torch.float32)
