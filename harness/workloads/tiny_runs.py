"""Many runs of the tiny policy at once: one batch holds the answers of all of them. R runs, S answers each.

A token's numbers depend on few things: its log-probabilities on its (state, action), of which a run has 24; its
advantage on whether its answer was rewarded and how many of its group were; its weight on its answer's length. So
exponentials are taken once a (state, action), advantages and weights are looked up, and what is left for each of
N tokens is a product. Exponentials are torch's; what IEEE 754 fixes to the bit is numpy's, whose calls cost less:
one run alone has 48 short answers, and most of its time goes into calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo_contract import GRPOLossContract
from harness.workloads.tiny_policy import (
    ACTIONS,
    LONGEST,
    PROMPTS,
    STATES,
    Drawn,
    Integers,
    draw,
    draw_at_once,
    success,
)
from harness.workloads.tiny_training import LEARNING_RATE, PASSES, SAMPLES_PER_PROMPT, UPDATES, tiny_contract
from harness.workloads.uniform_stream import STREAMS, UniformStream
from loss_ops.advantages import group_advantages
from loss_ops.normalizer import normalization

OnUpdate = Callable[[int, Tensor], None]
Floats = NDArray[np.float32]


def train_many(
    seeds: Sequence[int],
    *,
    stream: str = "torch",
    updates: int = UPDATES,
    samples_per_prompt: int = SAMPLES_PER_PROMPT,
    on_update: OnUpdate | None = None,
) -> Tensor:
    """[R] float64 exact success of one run per seed, trained side by side; each has its stream (see `STREAMS`).

    The mean over all sequences is that of one run divided by R, so the gradient is scaled by R. The numbers of a
    run do not depend on the others beyond the rounding of that factor. `on_update` gets each update's number and
    [R] success.
    """
    streams = [STREAMS[stream](seed) for seed in seeds]
    sample = SAMPLERS[stream]
    step = Step(len(seeds), samples_per_prompt)
    tables_R = torch.zeros(len(seeds), STATES, ACTIONS)
    for number in range(1, updates + 1):
        step(tables_R, sample(tables_R, streams, samples_per_prompt))
        if on_update is not None:
            on_update(number, success(tables_R))
    return success(tables_R)


def _three_numbers_each(tables_R: Tensor, streams: Sequence[UniformStream], samples: int) -> Drawn:
    sequences = PROMPTS * samples
    uniforms = np.concatenate([stream.upcoming(sequences * LONGEST) for stream in streams])
    for stream in streams:
        stream.consume(sequences * LONGEST)
    return draw_at_once(tables_R, uniforms.reshape(len(streams), sequences, LONGEST))


def _one_after_another(tables_R: Tensor, streams: Sequence[UniformStream], samples: int) -> Drawn:
    each = [draw(table, stream, samples) for table, stream in zip(tables_R, streams, strict=True)]
    return Drawn(*(np.concatenate(column) for column in zip(*each, strict=True)))


SAMPLERS = {"torch": _three_numbers_each, "mt19937": _one_after_another}
"""How answers use the numbers of each stream."""


class _Tokens(NamedTuple):
    """[N] of each token: where its log-probability lies, minus its weight, advantage, bounds of its clip."""

    pair_N: Integers
    weight_N: Floats
    advantage_N: Floats
    low_N: Floats
    high_N: Floats


class Step:
    """One update of all tables, in place. The gradient of a table's row is what its taken actions earn, less the
    row's sum times its probabilities; tokens add up in batch order.

    Same bits as the stages of the loss op on each token (`token_terms`, `group_advantages`, `normalization`) where
    the samples of a prompt are a power of two; else advantages agree to rounding.
    """

    def __init__(self, runs: int, samples_per_prompt: int) -> None:
        contract = tiny_contract(samples_per_prompt, runs)
        sequences = contract.geometry.num_sequences
        self.samples, self.beta = samples_per_prompt, np.float32(contract.objective.beta)
        self.by_class = _class_tables(samples_per_prompt, contract)
        self.weights = _weight_table(runs, contract)
        self.row_ST = np.repeat(np.arange(sequences), LONGEST).reshape(-1, LONGEST)
        self.table_S = np.repeat(np.arange(runs) * STATES, PROMPTS * samples_per_prompt)[:, None]
        self.logp, self.ratio, self.grown, self.chance = (_Shared(runs) for _ in range(4))
        self.start = np.full_like(self.logp.array, -math.log(ACTIONS))
        self.old, self.taken = np.empty_like(self.start), np.empty_like(self.start)

    def __call__(self, tables_R: Tensor, drawn: Drawn) -> None:
        tokens, table = self._tokens(drawn), tables_R.numpy()
        torch.log_softmax(tables_R, dim=-1, out=self.logp.tensor)
        np.copyto(self.old, self.logp.array)
        for _ in range(PASSES):
            gradient = self._gradient(tables_R, tokens)
            gradient *= LEARNING_RATE
            table -= gradient

    def _tokens(self, drawn: Drawn) -> _Tokens:
        mask, rewarded = drawn.mask_ST, drawn.rewarded()
        row_N = self.row_ST[mask]
        pair_N = ((self.table_S + drawn.states_ST) * ACTIONS + drawn.action_ids_ST)[mask]
        counts = rewarded.reshape(-1, self.samples).sum(axis=1)
        class_N = (counts.repeat(self.samples) * 2 + rewarded).take(row_N)
        weight_N = -self.weights.take(mask.sum(axis=1)).take(row_N)
        return _Tokens(pair_N, weight_N, *(each.take(class_N) for each in self.by_class))

    def _gradient(self, tables_R: Tensor, tokens: _Tokens) -> Floats:
        """[R, 6, 4]; overwritten by the next call."""
        logp, ratio, grown, chance, taken = self.logp, self.ratio, self.grown, self.chance, self.taken
        torch.log_softmax(tables_R, dim=-1, out=logp.tensor)
        torch.exp(logp.tensor, out=chance.tensor)
        np.subtract(logp.array, self.old, out=ratio.array)
        ratio.tensor.exp_()
        np.subtract(self.start, logp.array, out=grown.array)
        grown.tensor.expm1_()
        grown.array *= self.beta
        ratio_N = ratio.array.take(tokens.pair_N)
        slope_N = ratio_N * tokens.advantage_N
        slope_N *= (ratio_N >= tokens.low_N) & (ratio_N <= tokens.high_N)  # 0 where a clip binds
        slope_N += grown.array.take(tokens.pair_N)
        slope_N *= tokens.weight_N
        taken.fill(0.0)
        np.add.at(taken.reshape(-1), tokens.pair_N, slope_N)
        chance.array *= taken.sum(axis=-1, keepdims=True)
        taken -= chance.array
        return taken


class _Shared:
    """[R, 6, 4] float32 as a tensor and as an array on the same memory."""

    def __init__(self, runs: int) -> None:
        self.tensor = torch.empty(runs, STATES, ACTIONS)
        self.array: Floats = self.tensor.numpy()


def _class_tables(samples: int, contract: GRPOLossContract) -> tuple[Floats, Floats, Floats]:
    """[2 * (samples + 1)] each, by rewarded answers of a group * 2 + whether one's own is: advantage, and between
    which ratios its gradient is not clipped.
    """
    rewards = (torch.arange(samples)[None] < torch.arange(samples + 1)[:, None]).float()
    boundaries = tuple(range(0, rewards.numel() + 1, samples))
    objective = contract.objective
    found = group_advantages(rewards.flatten(), boundaries, objective.advantage).view(-1, samples)
    advantages = torch.stack((found[:, -1], found[:, 0]), dim=1).flatten()
    low = torch.where(advantages < 0, 1 - objective.clip_eps_low, -math.inf)
    high = torch.where(advantages > 0, 1 + objective.clip_eps_high, math.inf)
    return advantages.numpy(), low.numpy(), high.numpy()


def _weight_table(runs: int, contract: GRPOLossContract) -> Floats:
    """[LONGEST + 1] weight of a token by its answer's length: every answer has one, so all sequences count."""
    lengths = torch.ones(contract.geometry.num_sequences, dtype=torch.int64)
    lengths[:LONGEST] = torch.arange(1, LONGEST + 1)
    weights = normalization(lengths, contract).weight_B[:LONGEST] * runs
    return np.concatenate((np.zeros(1, np.float32), weights.numpy()))
