"""Batches as tensors: the values behind a built-in geometry, drawn from a seed, or a capture file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract
from harness.capture import load_capture
from harness.settings.batch_spec import BatchSpec, lengths
from loss_ops.batch import GlobalBatch

HOLE_EVERY = 7


def built_in(spec: BatchSpec, seed: int, contract: GRPOLossContract) -> GlobalBatch:
    """The batch of `spec` for one seed, on the CPU, equal in every process.

    Old log-probabilities lie about 1 from the policy's own, so that ratios spread over a wide range and sums
    have something to round; the reference lies near the policy in some sequences and far in others, so that
    their KL totals differ in size. A ragged batch has holes in its mask and garbage in every masked slot.
    """
    draw = torch.Generator().manual_seed(seed * 1_000_003 + spec.num_sequences * 131 + spec.padded_seq_len)
    slots = (spec.num_sequences, spec.padded_seq_len)
    dtype = getattr(torch, contract.logprob.dtype.value)
    policy = torch.randn(*slots, spec.padded_vocab_size, generator=draw).mul_(1.5)
    spread = torch.tensor([2.0 ** -(index % 4) for index in range(spec.num_sequences)])
    reference = policy + spread[:, None, None] * torch.randn(policy.shape, generator=draw)
    ids = torch.randint(0, spec.real_vocab_size, slots, generator=draw)
    policy, reference = policy.to(dtype), reference.to(dtype)
    old = _logps(policy, ids, contract) + torch.randn(slots, generator=draw)
    rewards = torch.randn(spec.num_sequences, generator=draw)
    batch = GlobalBatch(policy, reference, ids, old, rewards, _mask(spec, seed), contract)
    return _with_garbage(batch) if spec.raggedness == "ragged" else batch


def captured(path: Path, contract: GRPOLossContract) -> GlobalBatch:
    """The batch of a capture file, on the CPU."""
    held = load_capture(path)
    return GlobalBatch(
        held["policy_logits"],
        held.get("ref_logits"),
        held["action_ids"].long(),
        held["old_logps"].float(),
        held["rewards"].float(),
        held["completion_mask"] != 0,
        contract,
    )


def _mask(spec: BatchSpec, seed: int) -> Tensor:
    place = torch.arange(spec.padded_seq_len)
    mask = place[None] < torch.tensor(lengths(spec, seed))[:, None]
    if spec.raggedness == "ragged":
        mask = mask & (place % HOLE_EVERY != HOLE_EVERY - 1)
    return mask


def _logps(policy: Tensor, ids: Tensor, contract: GRPOLossContract) -> Tensor:
    real, temperature = contract.logprob.real_vocab_size, contract.objective.temperature
    rows = []
    for logits, taken in zip(policy, ids, strict=True):
        scaled = logits[:, :real].double() / temperature
        rows.append(scaled.log_softmax(-1).gather(1, taken[:, None])[:, 0].float())
    return torch.stack(rows)


def _with_garbage(batch: GlobalBatch) -> GlobalBatch:
    masked = ~batch.completion_mask
    batch.policy_logits[masked] = torch.nan
    if batch.ref_logits is not None:
        batch.ref_logits[masked] = torch.inf
    batch.action_ids[masked] = -100
    batch.old_logps[masked] = torch.nan
    return batch
