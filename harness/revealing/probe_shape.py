"""The size of the batches that carry probes, and the tensors that all of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, InputError, Problem
from loss_ops.batch import GlobalBatch

Run = Callable[[GlobalBatch], dict[str, Tensor]]
NOTHING = -1e4
"""A logit whose exponential is exactly 0 beside one of 0, in float32."""
MOST_PROBED = 4096
LARGEST_BATCH = 1 << 28
"""Elements of the logits of one probe: 1 GiB in float32."""


@dataclass(frozen=True)
class ProbeShape:
    """Sequences, slots, columns and tiles of the batches that carry probes, and the dtype of their logits."""

    sequences: int = 8
    tokens: int = 16
    columns: int = 16
    tiles: int = 4
    dtype: str = "float32"

    def __post_init__(self) -> None:
        found = [
            Problem("request.probe", f"--{name}", f"at most {MOST_PROBED}", str(getattr(self, name)))
            for name in ("sequences", "tokens", "columns", "tiles")
            if getattr(self, name) > MOST_PROBED
        ]
        size = self.sequences * self.tokens * self.columns
        if size > LARGEST_BATCH and not found:
            expected = f"a product of at most {LARGEST_BATCH}"
            found.append(Problem("request.probe", "--sequences x --tokens x --columns", expected, str(size)))
        found += [
            Problem("request.probe", f"--{name}", expected, str(getattr(self, name)))
            for name, least, even, expected in (
                ("sequences", 2, True, "an even number from 2 on (half of the advantages are 1, half -1)"),
                ("tokens", 1, False, "at least 1"),
                ("columns", 2, False, "at least 2"),
            )
            if getattr(self, name) < least or (even and getattr(self, name) % 2)
        ]
        if found:
            raise InputError(found)

    def contract(self, tokens: int) -> GRPOLossContract:
        """Advantages of +1 and -1, no clip in the way, KL by its k1 estimate, beta 0."""
        return GRPOLossContract.for_batch(
            num_sequences=self.sequences,
            padded_seq_len=tokens,
            vocab_size=self.columns,
            dtype=self.dtype,
            num_vocab_tiles=self.tiles,
            samples_per_prompt=self.sequences,
            beta=0.0,
            kl_estimator="k1",
            clip_eps_low=1.0,
            clip_eps_high=1e4,
            advantage="mean_only",
        )

    def batch(self, tokens: int, old_logps: Tensor, logits: Tensor, ref: Tensor, ids: Tensor) -> GlobalBatch:
        """The batch of these tensors; rewards alternate between 1 and -1."""
        rewards = torch.tensor([1.0, -1.0]).repeat(self.sequences)[: self.sequences]
        mask = torch.ones(self.sequences, tokens, dtype=torch.bool)
        dtype: torch.dtype = getattr(torch, self.dtype)
        policy, reference = logits.to(dtype), ref.to(dtype)
        return GlobalBatch(policy, reference, ids, old_logps, rewards, mask, self.contract(tokens))

    def certain(self, tokens: int) -> Tensor:
        """[B, T, V] logits under which column 0 is certain."""
        logits = torch.full((self.sequences, tokens, self.columns), NOTHING)
        logits[..., 0] = 0.0
        return logits
