"""Many runs of the tiny policy at once: one batch holds the answers of all of them. R runs, S answers each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from grpo_contract import ShardingSpec
from harness.workloads.gradient_tree import tree_sum
from harness.workloads.tiny_policy import (
    ACTIONS,
    LONGEST,
    PROMPTS,
    STATES,
    sample_at_once,
    success,
    table_gradients,
)
from harness.workloads.tiny_training import LEARNING_RATE, PASSES, SAMPLES_PER_PROMPT, UPDATES, tiny_contract
from harness.workloads.uniform_stream import TorchStream
from loss_ops import kernel_registry
from loss_ops.vocab_logprob import VocabParallelLogprobOp

OnUpdate = Callable[[int, Tensor], None]


def train_many(
    seeds: Sequence[int],
    *,
    updates: int = UPDATES,
    samples_per_prompt: int = SAMPLES_PER_PROMPT,
    on_update: OnUpdate = lambda number, success_R: None,
) -> Tensor:
    """[R] float64 exact success of one run per seed, each with torch's generator, trained side by side.

    The mean over all sequences is that of one run divided by R, so the gradient is scaled by R. The numbers of a
    run do not depend on the others beyond the rounding of that factor.
    """
    runs, sequences = len(seeds), PROMPTS * samples_per_prompt
    streams = [TorchStream(seed) for seed in seeds]
    step = _Step(runs, samples_per_prompt)
    tables_R = torch.zeros(runs, STATES, ACTIONS)
    for number in range(1, updates + 1):
        uniforms = np.stack([_take(stream, sequences * LONGEST) for stream in streams])
        step(tables_R, uniforms.reshape(runs, sequences, LONGEST))
        on_update(number, success(tables_R))
    return success(tables_R)


def _take(stream: TorchStream, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    uniforms = stream.upcoming(count)
    stream.consume(count)
    return uniforms


class _Step:
    """One update of all tables, in place."""

    def __init__(self, runs: int, samples_per_prompt: int) -> None:
        self.contract = tiny_contract(samples_per_prompt, runs)
        self.op = kernel_registry.get_loss_op(self.contract).op
        self.logprob = VocabParallelLogprobOp(self.op.stages)
        self.alone = ShardingSpec.even(1, 1, contract=self.contract)
        self.run_S = torch.arange(runs).repeat_interleave(PROMPTS * samples_per_prompt)

    def __call__(self, tables_R: Tensor, uniforms_RST: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
        answers = sample_at_once(tables_R, uniforms_RST)
        rewards, run = answers.rewards(), self.run_S[:, None]
        logits = tables_R[run, answers.states_ST]
        reference = torch.zeros_like(logits)
        old = self.logprob.apply(
            logits.flatten(0, 1), answers.action_ids_ST.flatten(), contract=self.contract.logprob,
            sharding=self.alone, active=answers.mask_ST.flatten(),
        ).view(answers.mask_ST.shape)  # fmt: skip
        for done in range(PASSES):
            logits = tables_R[run, answers.states_ST].requires_grad_()
            result = self.op.apply(
                logits, answers.action_ids_ST, old, rewards, contract=self.contract, sharding=self.alone,
                completion_mask=answers.mask_ST, ref_local_logits=reference, grad_scale=float(len(tables_R)),
                validate="off" if done else "full", preflight="off",
            )  # fmt: skip
            (gradient,) = torch.autograd.grad(result.loss, logits)
            leaves = table_gradients(gradient, answers).view(len(tables_R), -1, STATES, ACTIONS)
            tables_R.sub_(tree_sum(leaves.movedim(1, 0)), alpha=LEARNING_RATE)
