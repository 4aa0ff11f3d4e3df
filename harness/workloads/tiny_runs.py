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
    """[N] of each token: where its log-probability lies, minus its weight, sign and size of its advantage, and
    what its ratio times that sign exceeds where the clip binds.
    """

    pair_N: Integers
    weight_N: Floats
    sign_N: Floats
    size_N: Floats
    bound_N: Floats


class Step:
    """One update of all tables, in place. The gradient of a table's row is what its taken actions earn, less the
    row's sum times its probabilities; tokens add up in batch order.

    Same bits as the stages of the loss op on each token (`token_terms`, `group_advantages`, `normalization`) where
    the samples of a prompt are a power of two; else advantages agree to rounding.
    """

    def __init__(self, runs: int, samples_per_prompt: int) -> None:
        contract = tiny_contract(samples_per_prompt, runs)
        self.samples, self.beta = samples_per_prompt, np.float32(contract.objective.beta)
        self.by_class = _class_tables(samples_per_prompt, contract)
        self.weights = _weight_table(runs, contract)
        self.table_S = np.repeat(np.arange(runs) * STATES * ACTIONS, PROMPTS * samples_per_prompt)[:, None]
        shape = (runs, STATES, ACTIONS)
        self.logs_tensor, self.powers_tensor = torch.empty(2, 2, *shape)
        self.logp_tensor, self.grown_tensor = self.logs_tensor[0], torch.empty(shape)
        self.logp, self.change = self.logs_tensor.numpy()
        self.chance, self.ratio = self.powers_tensor.numpy()
        self.grown: Floats = self.grown_tensor.numpy()
        self.start, self.old = np.full(shape, -math.log(ACTIONS), np.float32), np.empty(shape, np.float32)
        self.taken = np.empty(shape, np.float32)
        self.taken_flat = self.taken.reshape(-1)

    def __call__(self, tables_R: Tensor, drawn: Drawn) -> None:
        tokens, table = self._tokens(drawn), tables_R.numpy()
        torch.log_softmax(tables_R, dim=-1, out=self.logp_tensor)
        np.copyto(self.old, self.logp)
        for _ in range(PASSES):
            gradient = self._gradient(tables_R, tokens)
            gradient *= LEARNING_RATE
            table -= gradient

    def _tokens(self, drawn: Drawn) -> _Tokens:
        slot_N = drawn.mask_ST.reshape(-1).nonzero()[0]
        row_N = slot_N // LONGEST
        pair_N = (self.table_S + drawn.states_ST * ACTIONS + drawn.action_ids_ST).take(slot_N)
        rewarded = drawn.rewarded()
        counts = rewarded.reshape(-1, self.samples).sum(axis=1)
        class_N = (counts.repeat(self.samples) * 2 + rewarded).take(row_N)
        weight_N = self.weights.take(np.bincount(row_N).take(row_N))
        return _Tokens(pair_N, weight_N, *(each.take(class_N) for each in self.by_class))

    def _gradient(self, tables_R: Tensor, tokens: _Tokens) -> Floats:
        """[R, 6, 4]; overwritten by the next call."""
        pair_N, weight_N, sign_N, size_N, bound_N = tokens
        torch.log_softmax(tables_R, dim=-1, out=self.logp_tensor)
        np.subtract(self.logp, self.old, out=self.change)
        torch.exp(self.logs_tensor, out=self.powers_tensor)
        np.subtract(self.start, self.logp, out=self.grown)
        self.grown_tensor.expm1_()
        self.grown *= self.beta
        signed_N = self.ratio.take(pair_N)
        signed_N *= sign_N
        slope_N = signed_N * size_N
        slope_N *= signed_N <= bound_N  # 0 where a clip binds
        slope_N += self.grown.take(pair_N)
        slope_N *= weight_N
        self.taken.fill(0.0)
        np.add.at(self.taken_flat, pair_N, slope_N)
        self.chance *= self.taken.sum(axis=-1, keepdims=True)
        self.taken -= self.chance
        return self.taken


def _class_tables(samples: int, contract: GRPOLossContract) -> tuple[Floats, Floats, Floats]:
    """[2 * (samples + 1)] each, by rewarded answers of a group * 2 + whether one's own is: the last fields of
    `_Tokens`.
    """
    rewards = (torch.arange(samples)[None] < torch.arange(samples + 1)[:, None]).float()
    boundaries = tuple(range(0, rewards.numel() + 1, samples))
    objective = contract.objective
    found = group_advantages(rewards.flatten(), boundaries, objective.advantage).view(-1, samples)
    advantages = torch.stack((found[:, -1], found[:, 0]), dim=1).flatten()
    bounds = torch.where(advantages < 0, -(1 - objective.clip_eps_low), 1 + objective.clip_eps_high)
    return advantages.sign().numpy(), advantages.abs().numpy(), bounds.numpy()


def _weight_table(runs: int, contract: GRPOLossContract) -> Floats:
    """[LONGEST + 1] minus a token's weight, by its answer's length: no answer is empty, so all sequences count."""
    lengths = torch.ones(contract.geometry.num_sequences, dtype=torch.int64)
    lengths[:LONGEST] = torch.arange(1, LONGEST + 1)
    weights = normalization(lengths, contract).weight_B[:LONGEST] * runs
    return np.concatenate((np.zeros(1, np.float32), -weights.numpy()))
