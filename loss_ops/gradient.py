"""The analytic gradient in the policy logits, written once, in the logits' dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from loss_ops.inputs import Slots
from loss_ops.logprob import Logprobs
from loss_ops.tile_stats import owns, row_chunks, scaled_logits


def logits_gradient(logits_NV: Tensor, slots: Slots, coefficient_N: Tensor, softmax: Logprobs) -> Tensor:
    """coefficient * (1[v is the taken token] - p[v]) for every column of the shard.

    `coefficient_N` is d loss / d logp divided by the temperature, float32, the incoming gradient and grad_scale
    included. Masked rows and padding columns are exactly +0.0. No reduction: each element is its own.
    """
    shard, active_N = slots.shard, slots.active_N
    gradient = torch.empty_like(logits_NV, memory_format=torch.contiguous_format)
    owned = owns(slots.action_ids_N, shard) & active_N
    column = torch.where(owned, slots.action_ids_N - shard.start, 0)
    for chunk in row_chunks(logits_NV):
        scaled = scaled_logits(logits_NV[chunk], active_N[chunk], shard, slots.temperature)
        exponent = (scaled - softmax.max_N[chunk, None]) - softmax.log_sum_N[chunk, None]
        rest = exponent.exp_().neg_()
        rest.scatter_add_(1, column[chunk, None], owned[chunk, None].float())
        product = rest * coefficient_N[chunk, None]
        kept = torch.where(active_N[chunk, None], product, 0.0).add_(0.0)
        kept[:, shard.num_real_columns :] = 0.0
        gradient[chunk] = kept
    return gradient
