"""Group-relative advantages (DeepSeekMath, section 4.1), computed on every rank over all rewards."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from grpo_contract import AdvantageKind, AdvantageSpec, StdEpsMode
from loss_ops.trees import fold_sum


def group_advantages(rewards_B: Tensor, boundaries: tuple[int, ...], spec: AdvantageSpec) -> Tensor:
    """[B] float32 advantages: (reward - group mean) / std, and exactly 0 in a group of equal rewards.

    Every reward is measured from its group's first, so that equal rewards give exact zeros and large rewards
    keep their differences. Order: each group is folded by halves, padded with zeros to the largest group.
    Each step is element-wise over groups, so the bits do not depend on the other groups of the batch.
    """
    place_GS, member_GS, size_G, group_B, slot_B = _layout(boundaries, rewards_B.device)
    rewards_GS = rewards_B.float()[place_GS]
    shifted = torch.where(member_GS, rewards_GS - rewards_GS[:, :1], 0.0)
    centred = torch.where(member_GS, shifted - (fold_sum(shifted, 1) / size_G)[:, None], 0.0)
    equal = (shifted == 0).all(dim=1)
    scaled = centred if spec.kind is AdvantageKind.MEAN_ONLY else centred / _divisor(centred, size_G, spec)
    advantages = torch.where(equal[:, None], 0.0, scaled) + 0.0
    return advantages[group_B, slot_B]


def _divisor(centred_GS: Tensor, size_G: Tensor, spec: AdvantageSpec) -> Tensor:
    count = size_G - 1 if spec.kind is AdvantageKind.MEAN_STD_SAMPLE else size_G
    variance = fold_sum(centred_GS * centred_GS, 1) / count
    if spec.std_eps_mode is StdEpsMode.VARIANCE:
        return (variance + spec.std_eps).sqrt()[:, None]
    std = variance.sqrt()[:, None]
    if spec.std_eps_mode is StdEpsMode.ADD:
        return std + spec.std_eps
    return std.clamp_min(spec.std_eps)


@lru_cache(maxsize=64)
def _layout(boundaries: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Index tensors between [B] sequences and [G, S] groups padded to the largest."""
    edges = torch.tensor(boundaries)
    starts, sizes = edges[:-1], edges[1:] - edges[:-1]
    slots = torch.arange(int(sizes.max()))
    member = slots[None] < sizes[:, None]
    place = starts[:, None] + torch.where(member, slots[None], 0)
    group = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    slot = torch.arange(boundaries[-1]) - starts[group]
    return tuple(t.to(device) for t in (place, member, sizes.float(), group, slot))
