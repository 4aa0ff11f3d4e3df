"""Random dense batches, and the plain PyTorch loss that they are also given to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class DenseBatch:
    """B = prompts * samples sequences of `length` slots over `vocab` columns, all on the device."""

    policy_logits: Tensor
    ref_logits: Tensor
    action_ids: Tensor
    old_logps: Tensor
    rewards: Tensor
    completion_mask: Tensor
    samples: int

    @classmethod
    def random(
        cls, prompts: int, samples: int, length: int, vocab: int, dtype: str, *, ragged: bool = False
    ) -> DenseBatch:
        """Standard normal logits; with `ragged` sequence s has 1 + (5 s) mod length tokens."""
        sequences, kind = prompts * samples, getattr(torch, dtype)
        generator = torch.Generator("cuda").manual_seed(0)

        def logits() -> Tensor:
            out = torch.empty(sequences, length, vocab, dtype=kind, device="cuda")
            for each in out:
                each.copy_(torch.randn(length, vocab, device="cuda", generator=generator))
            return out

        slots = (sequences, length)
        lengths = 1 + 5 * torch.arange(sequences, device="cuda") % length if ragged else None
        every = torch.arange(length, device="cuda").expand(slots)
        return cls(
            logits(),
            logits(),
            torch.randint(0, vocab, slots, device="cuda", generator=generator),
            torch.randn(slots, device="cuda", generator=generator) - torch.tensor(float(vocab)).log().item(),
            torch.randn(sequences, device="cuda", generator=generator),
            every < lengths[:, None]
            if lengths is not None
            else torch.ones(slots, dtype=torch.bool, device="cuda"),
            samples,
        )

    @property
    def unit_bytes(self) -> int:
        """Bytes of one set of logits."""
        return self.policy_logits.numel() * self.policy_logits.element_size()

    def arguments(self, policy_logits: Tensor | None = None) -> tuple[Tensor, ...]:
        """Positional arguments of the dense op."""
        policy = self.policy_logits if policy_logits is None else policy_logits
        return policy, self.ref_logits, self.action_ids, self.old_logps, self.rewards, self.completion_mask


class LayerOutput(torch.autograd.Function):
    """Hands out a buffer as a layer's output and takes its gradient, as the end of a language model would."""

    @staticmethod
    def forward(ctx: Any, buffer: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return buffer.view_as(buffer)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (weight,) = ctx.saved_tensors
        return None, torch.zeros_like(weight)


def eager_loss(batch: DenseBatch, policy_logits: Tensor, *, upcast: bool = True) -> Tensor:
    """GRPO loss as one writes it in PyTorch: log_softmax (in float32) and gather, masked means."""
    clip, beta = 0.2, 0.04
    mask, ids = batch.completion_mask, batch.action_ids[..., None]
    logp = (policy_logits.float() if upcast else policy_logits).log_softmax(-1).gather(-1, ids)[..., 0]
    with torch.no_grad():
        ref_logp = (
            (batch.ref_logits.float() if upcast else batch.ref_logits).log_softmax(-1).gather(-1, ids)[..., 0]
        )
        grouped = batch.rewards.view(-1, batch.samples)
        std = grouped.std(1, keepdim=True, unbiased=False).clamp_min(1e-6)
        advantage = ((grouped - grouped.mean(1, keepdim=True)) / std).reshape(-1, 1)
    ratio = torch.where(mask, logp - batch.old_logps, 0.0).exp()
    policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    d = torch.where(mask, ref_logp - logp, 0.0)
    kl = d.expm1() - d
    return ((policy + beta * kl) * mask).sum() / mask.sum()
