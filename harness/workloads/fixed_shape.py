"""Forward passes of a causal language model whose shapes do not depend on how a batch is split.

K sequences of one block are computed together, always the same ones. L is the padded length of the inputs, T the
longest answer, V the model's columns. Inputs are padded on the right, behind what any slot can see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from harness.workloads.gradient_tree import tree_sum
from harness.workloads.token_task import TokenTask


def block_inputs(task: TokenTask, prompts: Sequence[int], answers_KT: Tensor) -> Tensor:
    """[K, L] int64: each prompt, then its answer but for the last token, then zeros."""
    inputs = answers_KT.new_zeros(len(prompts), task.padded_length)
    for row, (prompt, answer) in enumerate(zip(prompts, answers_KT, strict=True)):
        tokens = torch.tensor(task.prompts[prompt], device=inputs.device)
        inputs[row, : len(tokens)] = tokens
        inputs[row, len(tokens) : len(tokens) + len(answer) - 1] = answer[:-1]
    return inputs


def answer_logits(model: Any, task: TokenTask, prompts: Sequence[int], answers_KT: Tensor) -> Tensor:
    """[K, T, V] contiguous logits from which each slot of an answer is drawn; differentiable in the model.

    Rows that are equal are computed once: with answers of one token, a prompt however often it was sampled.
    Their gradients meet in the order of the rows, neighbours first.
    """
    inputs = block_inputs(task, prompts, answers_KT)
    starts = torch.tensor([len(task.prompts[prompt]) - 1 for prompt in prompts], device=inputs.device)
    keyed = torch.cat((inputs, starts[:, None]), dim=1)
    distinct, place_K = torch.unique(keyed, dim=0, return_inverse=True)
    logits = model(input_ids=distinct[:, :-1], use_cache=False).logits
    slots = distinct[:, -1:] + torch.arange(answers_KT.shape[1], device=inputs.device)
    answers = logits[torch.arange(len(distinct), device=inputs.device)[:, None], slots]
    repeated: Tensor = _Repeat.apply(answers, place_K)
    return repeated


class _Repeat(torch.autograd.Function):
    """[U, T, V] to [K, T, V]: row k is row place_K[k]; the backward adds rows by `tree_sum`."""

    @staticmethod
    def forward(ctx: Any, distinct: Tensor, place_K: Tensor) -> Tensor:
        ctx.place, ctx.distinct = place_K, len(distinct)
        return distinct[place_K]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        rows = [tree_sum(gradient[ctx.place == each]) for each in range(ctx.distinct)]
        return torch.stack(rows), None
