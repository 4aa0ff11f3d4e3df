"""What a loss call returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from loss_ops.loss_program import LossState


@dataclass(frozen=True)
class ClipCounts:
    """0-dim int64 counts over the batch's active tokens: where a clip binds, below, above, either; and all."""

    low: Tensor
    high: Tensor
    region: Tensor
    active: Tensor

    def as_dict(self) -> dict[str, int]:
        """Plain integers; synchronizes with the device."""
        return {name: int(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class GRPOLossResult:
    """Unpacks as `loss, policy_loss, kl`: float32 scalars, equal on every rank; only `loss` has a gradient.

    Per-sequence vectors and advantages are [num_sequences] of the whole batch, on every rank: float32 sums over
    a sequence's active tokens before any normalizer (kl not multiplied by beta), int64 counts. `provenance`
    says what ran, why others did not, and under which fingerprints.
    """

    loss: Tensor
    policy_loss: Tensor
    kl: Tensor
    per_sequence_policy: Tensor
    per_sequence_kl: Tensor
    per_sequence_active_tokens: Tensor
    advantages: Tensor
    clip_counts: ClipCounts
    provenance: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.loss, self.policy_loss, self.kl))

    @classmethod
    def of(cls, state: LossState, loss: Tensor, provenance: dict[str, Any]) -> GRPOLossResult:
        """Collect a finished forward; `loss` is the scalar that carries the gradient."""
        totals = state.totals_B
        return cls(
            loss=loss,
            policy_loss=state.scalars.policy_loss,
            kl=state.scalars.kl,
            per_sequence_policy=totals.policy,
            per_sequence_kl=totals.kl,
            per_sequence_active_tokens=totals.active_tokens,
            advantages=state.advantages_B,
            clip_counts=_clip_counts(state),
            provenance=provenance,
        )


def _clip_counts(state: LossState) -> ClipCounts:
    if state.clip_counts_4 is not None:
        return ClipCounts(*state.clip_counts_4.unbind())
    totals = state.totals_B
    low, high = totals.clip_low.sum(), totals.clip_high.sum()
    return ClipCounts(low, high, low + high, totals.active_tokens.sum())
