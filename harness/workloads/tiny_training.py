"""The tiny policy as a workload: three prompts, sixteen answers each, SGD, as the C++ program trains it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, ShardingSpec
from harness.workloads.ranks import Place, TrainingProgram
from harness.workloads.tiny_policy import ACTIONS, LONGEST, PROMPTS, Answers, sample, start_table, table_gradients
from harness.workloads.training import Rollout
from harness.workloads.uniform_stream import Mt19937Stream, UniformStream
from loss_ops import kernel_registry
from loss_ops.fixed_batch import Part
from loss_ops.vocab_logprob import VocabParallelLogprobOp

SAMPLES_PER_PROMPT = 16
LEARNING_RATE = 0.5
PASSES = 4
UPDATES = 100


def tiny_contract(samples_per_prompt: int = SAMPLES_PER_PROMPT, runs: int = 1, **fields: Any) -> GRPOLossContract:
    """Clip 0.2, beta 0.01, k3, mean over sequences, advantages over sqrt(population variance + 1e-8)."""
    defaults: dict[str, Any] = {
        "clip_eps": 0.2,
        "beta": 0.01,
        "kl_estimator": "k3",
        "token_normalizer": "per_sequence_then_mean",
        "std_eps": 1e-8,
        "std_eps_mode": "variance",
    }
    return GRPOLossContract.for_batch(
        num_sequences=runs * PROMPTS * samples_per_prompt,
        padded_seq_len=LONGEST,
        vocab_size=ACTIONS,
        samples_per_prompt=samples_per_prompt,
        num_vocab_tiles=1,
        **(defaults | fields),
    )


class TinyWorkload:
    """One run of the tiny policy. Every rank samples all answers from the same stream: they are cheap."""

    block = 1

    def __init__(
        self,
        stream: UniformStream | None = None,
        *,
        contract: GRPOLossContract | None = None,
        table: Tensor | None = None,
        learning_rate: float = LEARNING_RATE,
        backend: str | None = None,
    ) -> None:
        self.stream = stream or Mt19937Stream(0)
        self.contract = contract or tiny_contract()
        self.table = start_table() if table is None else table
        self.learning_rate = learning_rate
        self.op = kernel_registry.get_loss_op(self.contract, device=self.table.device, backend=backend).op
        self._logprob = VocabParallelLogprobOp(self.op.stages)
        self._alone = ShardingSpec.even(1, 1, contract=self.contract)

    def parameters(self) -> dict[str, Tensor]:
        """The table."""
        return {"table": self.table}

    def rollout(self, update: int, place: Place) -> TrainingProgram[Rollout]:
        """The next answers of the stream; updates must be asked for in order."""
        samples = self.contract.geometry.num_sequences // PROMPTS
        answers = sample(self.table, self.stream, samples)
        return Rollout(self.contract, answers.action_ids_ST, answers.mask_ST, answers)
        yield

    def rewards(self, rollout: Rollout, start: int, stop: int) -> Tensor:
        """1 for the prompt's token followed by EOS, else 0."""
        answers: Answers = rollout.source
        return answers.rewards(start, stop)

    def logprobs(self, rollout: Rollout, start: int, stop: int) -> Tensor:
        """[S, T] of the taken actions."""
        rows = slice(start, stop)
        logits = self.logits(rollout, start, stop).flatten(0, 1)
        ids, active = rollout.action_ids_BT[rows], rollout.mask_BT[rows]
        logp = self._logprob.apply(
            logits, ids.flatten(), contract=self.contract.logprob, sharding=self._alone, active=active.flatten()
        )
        return logp.view(ids.shape)

    def part(
        self, rollout: Rollout, start: int, stop: int, apply: Callable[..., Part]
    ) -> tuple[Part, Iterable[tuple[int, Tensor]]]:
        """All sequences in one call; each gives its own gradient of 24 numbers."""
        logits = self.logits(rollout, start, stop).requires_grad_()
        part = apply(logits, start=start, ref_local_logits=self.reference(rollout, start, stop))
        (gradient,) = torch.autograd.grad(part.result.loss, logits)
        leaves = table_gradients(gradient, rollout.source, start).flatten(1)
        return part, enumerate(leaves.unbind(), start)

    def step(self, gradient: Tensor) -> None:
        """table -= learning rate * gradient."""
        self.table.sub_(gradient.view_as(self.table), alpha=self.learning_rate)

    def logits(self, rollout: Rollout, start: int, stop: int) -> Tensor:
        """[S, T, 4] rows of the table."""
        answers: Answers = rollout.source
        return self.table[answers.states_ST[start:stop]]

    def reference(self, rollout: Rollout, start: int, stop: int) -> Tensor | None:
        """[S, T, 4] zeros, the uniform start; None at beta 0."""
        return self.table.new_zeros(stop - start, LONGEST, ACTIONS) if self.contract.objective.beta else None
