"""Many runs of the tiny policy at once: one batch holds the answers of all of them. R runs, S answers each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from harness.workloads.tiny_policy import (
    ACTIONS,
    LONGEST,
    PROMPTS,
    STATES,
    Answers,
    sample,
    sample_at_once,
    success,
)
from harness.workloads.tiny_training import LEARNING_RATE, PASSES, SAMPLES_PER_PROMPT, UPDATES, tiny_contract
from harness.workloads.uniform_stream import STREAMS, UniformStream
from loss_ops.advantages import group_advantages
from loss_ops.normalizer import normalization
from loss_ops.token_terms import token_terms

OnUpdate = Callable[[int, Tensor], None]


def train_many(
    seeds: Sequence[int],
    *,
    stream: str = "torch",
    updates: int = UPDATES,
    samples_per_prompt: int = SAMPLES_PER_PROMPT,
    on_update: OnUpdate = lambda number, success_R: None,
) -> Tensor:
    """[R] float64 exact success of one run per seed, trained side by side; each has its stream (see `STREAMS`).

    The mean over all sequences is that of one run divided by R, so the gradient is scaled by R. The numbers of a
    run do not depend on the others beyond the rounding of that factor.
    """
    streams = [STREAMS[stream](seed) for seed in seeds]
    step = _Step(len(seeds), samples_per_prompt)
    tables_R = torch.zeros(len(seeds), STATES, ACTIONS)
    for number in range(1, updates + 1):
        if stream == "torch":
            answers = _three_numbers_each(tables_R, streams, samples_per_prompt)
        else:
            answers = _one_after_another(tables_R, streams, samples_per_prompt)
        step(tables_R, answers)
        on_update(number, success(tables_R))
    return success(tables_R)


def _three_numbers_each(tables_R: Tensor, streams: Sequence[UniformStream], samples: int) -> Answers:
    sequences = PROMPTS * samples
    uniforms = np.stack([stream.upcoming(sequences * LONGEST) for stream in streams])
    for stream in streams:
        stream.consume(sequences * LONGEST)
    return sample_at_once(tables_R, uniforms.reshape(len(streams), sequences, LONGEST))


def _one_after_another(tables_R: Tensor, streams: Sequence[UniformStream], samples: int) -> Answers:
    each = [sample(table, stream, samples) for table, stream in zip(tables_R, streams, strict=True)]
    columns = zip(*((one.states_ST, one.action_ids_ST, one.mask_ST) for one in each), strict=True)
    return Answers(*(torch.cat(column) for column in columns))


class _Step:
    """One update of all tables, in place: the stages of the loss, on the 24 log-probabilities of each run.

    A table has few states, so its softmax is taken once and not once a token; the gradient of a row is what its
    taken actions earn, less the row's sum times its probabilities. Tokens add up in batch order on the CPU.
    """

    def __init__(self, runs: int, samples_per_prompt: int) -> None:
        self.contract = tiny_contract(samples_per_prompt, runs)
        self.run_S = torch.arange(runs).repeat_interleave(PROMPTS * samples_per_prompt)

    def __call__(self, tables_R: Tensor, answers: Answers) -> None:
        objective, mask = self.contract.objective, answers.mask_ST
        pairs = (self.run_S[:, None] * STATES + answers.states_ST) * ACTIONS + answers.action_ids_ST
        boundaries = self.contract.geometry.group_boundaries
        advantages = group_advantages(answers.rewards(), boundaries, objective.advantage)
        weight_S = normalization(mask.sum(dim=1), self.contract).weight_B * len(tables_R)
        old = _log_softmax(tables_R)[pairs]
        start = torch.full_like(old, -math.log(ACTIONS))
        for _ in range(PASSES):
            logp = _log_softmax(tables_R)
            terms = token_terms(logp[pairs], start, old, advantages, mask, objective)
            slope = torch.where(mask, (terms.d_policy + objective.beta * terms.d_kl) * weight_S[:, None], 0.0)
            taken = torch.zeros_like(logp).index_add_(0, pairs.flatten(), slope.flatten()).view_as(tables_R)
            gradient = taken - taken.sum(dim=-1, keepdim=True) * logp.exp().view_as(tables_R)
            tables_R.sub_(gradient, alpha=LEARNING_RATE)


def _log_softmax(tables_R: Tensor) -> Tensor:
    """[R * 24]"""
    return torch.log_softmax(tables_R, dim=-1).flatten()
