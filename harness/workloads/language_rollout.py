"""The rollout of a language model: an allocator's rounds, each sampled by all ranks in whole blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from grpo_contract import even_bounds
from harness.workloads.allocation import Allocator
from harness.workloads.answer_sampling import Ask, sample_block
from harness.workloads.ranks import Place, TrainingProgram
from harness.workloads.token_task import TokenTask
from loss_ops.gather import Gather


@dataclass(frozen=True)
class Sampling:
    """What samples: model, task, sequences of one forward, and what seeds the answers of an update."""

    model: Any
    task: TokenTask
    block: int
    seed: int
    update: int


@dataclass(frozen=True)
class Sampled:
    """Answers prompt by prompt: [B, T + 1] tokens and length, the prompt of each, and [B] float32 rewards."""

    answers: Tensor
    prompts: tuple[int, ...]
    rewards_B: Tensor

    @property
    def group_boundaries(self) -> tuple[int, ...]:
        """Offsets of the prompts' groups."""
        counts = [self.prompts.count(prompt) for prompt in dict.fromkeys(self.prompts)]
        return (0, *accumulate(counts))


def sample_rounds(sampling: Sampling, allocator: Allocator, place: Place) -> TrainingProgram[Sampled]:
    """All rounds of `allocator`; the same on every rank, whatever their number."""
    kept: list[tuple[int, Tensor, float]] = []
    while not allocator.done:
        asks = _asks(allocator)
        sampled = yield from _round(sampling, asks, place)
        rewards = _rewards(sampling.task, asks, sampled)
        kept += [(ask[0], *each) for ask, each in zip(asks, zip(sampled, rewards, strict=True), strict=True)]
        for prompt, _ in allocator.requests():
            own = [reward for ask, reward in zip(asks, rewards, strict=True) if ask[0] == prompt]
            allocator.observe(prompt, own)
        allocator.refine()
    ordered = sorted(kept, key=lambda each: each[0])  # stable: rounds stay in order within a prompt
    prompts, answers, earned = zip(*ordered, strict=True)
    stacked = torch.stack(answers)
    return Sampled(stacked, prompts, torch.tensor(earned, dtype=torch.float32, device=stacked.device))


def _asks(allocator: Allocator) -> list[Ask]:
    """The samples of a round, prompt by prompt, numbered on from earlier rounds."""
    counts = allocator.counts
    return [(prompt, counts[prompt] + index) for prompt, count in allocator.requests() for index in range(count)]


def _round(sampling: Sampling, asks: Sequence[Ask], place: Place) -> TrainingProgram[Tensor]:
    """[n, T + 1] answers and lengths of a round, in the order of `asks`."""
    blocks = [asks[start : start + sampling.block] for start in range(0, len(asks), sampling.block)]
    shares = even_bounds(len(blocks), place.degree)
    own = [
        sample_block(sampling.model, sampling.task, block, seed=sampling.seed, update=sampling.update)
        for block in blocks[slice(*shares[place.rank])]
    ]
    device = next(sampling.model.parameters()).device
    none = torch.zeros(0, sampling.task.max_new_tokens + 1, dtype=torch.int64, device=device)
    sizes = tuple(sum(map(len, blocks[start:stop])) for start, stop in shares)
    return torch.cat((yield Gather("dp", torch.cat([none, *own]), sizes, "answers")))


def _rewards(task: TokenTask, asks: Sequence[Ask], sampled: Tensor) -> list[float]:
    """Every rank judges every answer: a reward is a function of prompt and tokens."""
    rows = sampled.tolist()
    return [float(task.reward(prompt, tuple(row[: row[-1]]))) for (prompt, _), row in zip(asks, rows, strict=True)]
