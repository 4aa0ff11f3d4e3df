"""What a comparison knows of the batch: which slots are masked, where a clip bound lies, how large terms are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from grpo_contract import ObjectiveSpec
from loss_ops.advantages import group_advantages
from loss_ops.batch import GlobalBatch

NEAR = 1e-5
CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Frame:
    """The batch behind compared quantities. Looked at only when something drifts.

    `scales` holds, for a quantity that is one number, the size of the terms that were added up to it.
    `shards` are the sequences [start, stop) of each DP rank.
    """

    batch: GlobalBatch
    scales: Mapping[str, float] = field(default_factory=dict)
    shards: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(
        cls, batch: GlobalBatch, expected: Mapping[str, Tensor], shards: tuple[tuple[int, int], ...] = ()
    ) -> Frame:
        """The frame of a batch, of the baseline's quantities, and of the candidate's sequence shards."""
        return cls(batch, _scales(expected), shards)

    @property
    def tile_width(self) -> int:
        """Columns of a vocabulary tile."""
        return self.batch.contract.logprob.tile_width

    def active(self, start: int, stop: int) -> Tensor:
        """[S, T] whether the slots of sequences [start, stop) count."""
        return self.batch.completion_mask[start:stop] != 0

    def group_sizes(self, start: int, stop: int) -> list[int]:
        """The size of the group of each of the sequences [start, stop)."""
        sizes = [high - low for low, high in self.batch.contract.geometry.groups for _ in range(low, high)]
        return sizes[start:stop]

    @cached_property
    def local_advantages(self) -> Tensor:
        """[B] what advantages would be if each rank normalized over its own part of each group."""
        edges = {first for first, _ in self.shards}
        return self._advantages(edges | set(self.batch.contract.geometry.group_boundaries))

    @cached_property
    def is_local_other(self) -> Tensor:
        """[B] where these are not the right ones."""
        right = self._advantages(self.batch.contract.geometry.group_boundaries)
        return (self.local_advantages - right).abs() > NEAR * right.abs().clamp_min(1.0)

    def _advantages(self, boundaries: Iterable[int]) -> Tensor:
        spec = self.batch.contract.objective.advantage
        return group_advantages(self.batch.rewards, tuple(sorted(boundaries)), spec)

    def at_boundary(self, start: int, stop: int) -> Tensor:
        """[S, T] active slots whose ratio lies on a clip bound, up to a relative 1e-5."""
        ratio = self._ratio(start, stop)
        objective: ObjectiveSpec = self.batch.contract.objective
        near = torch.zeros_like(ratio, dtype=torch.bool)
        for bound in (1 - objective.clip_eps_low, 1 + objective.clip_eps_high):
            near |= (ratio - bound).abs() <= NEAR * abs(bound)
        return near & self.active(start, stop)

    def _ratio(self, start: int, stop: int) -> Tensor:
        contract, logits = self.batch.contract, self.batch.policy_logits[start:stop]
        columns, length = contract.logprob.real_vocab_size, logits.shape[1]
        step = max(1, CHUNK_ELEMENTS // max(1, columns))
        ids = self.batch.action_ids[start:stop].clamp(0, columns - 1).long()
        parts = []
        for place in [(s, t) for s in range(logits.shape[0]) for t in range(0, length, step)]:
            rows = (place[0], slice(place[1], place[1] + step))
            scaled = logits[rows][:, :columns].float() / contract.objective.temperature
            parts.append(scaled.log_softmax(-1).gather(1, ids[rows][:, None])[:, 0])
        logp = torch.cat(parts).view(ids.shape)
        return (logp - self.batch.old_logps[start:stop].float()).exp()


def _scales(expected: Mapping[str, Tensor]) -> dict[str, float]:
    scales = {}
    for name, vector in (("policy_loss", "per_sequence_policy"), ("kl", "per_sequence_kl")):
        if name in expected and vector in expected:
            terms, value = expected[vector].double(), float(expected[name])
            total = float(terms.sum())
            scales[name] = abs(value) * float(terms.abs().sum()) / abs(total) if total else 1.0
    if scales:
        scales["loss"] = sum(scales.values())
    return scales
