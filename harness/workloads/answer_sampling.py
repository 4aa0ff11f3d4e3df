"""Sampling answers of a language model, one stream of numbers for each answer, whoever samples it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harness.workloads.fixed_shape import answer_logits
from harness.workloads.token_task import TokenTask

Ask = tuple[int, int]
"""(prompt, number of the sample among those of this prompt in this update)."""


def sample_block(model: Any, task: TokenTask, asks: Sequence[Ask], *, seed: int, update: int) -> Tensor:
    """[K, T + 1] int64: tokens of each answer (0 past its end), then its length, a final EOS included.

    A token is the first whose cumulative probability (float64, on the CPU) reaches u. The model is run anew for
    each token at one fixed shape: no cache, so that sampling gives the same bits as training.
    """
    device = next(model.parameters()).device
    uniforms_KT = [answer_uniforms(seed, update, ask, task.max_new_tokens) for ask in asks]
    prompts = [prompt for prompt, _ in asks]
    answers = torch.zeros(len(asks), task.max_new_tokens, dtype=torch.int64, device=device)
    lengths = torch.full((len(asks), 1), task.max_new_tokens)
    for slot in range(task.max_new_tokens):
        with torch.no_grad():
            logits = answer_logits(model, task, prompts, answers)[:, slot].double().cpu()
        for row in (lengths[:, 0] > slot).nonzero().flatten().tolist():
            token = _pick(logits[row], float(uniforms_KT[row][slot]))
            answers[row, slot] = token
            if token == task.eos:
                lengths[row] = slot + 1
        if bool((lengths <= slot + 1).all()):
            break
    return torch.cat((answers, lengths.to(device)), dim=1)


def _pick(logits_V: Tensor, uniform: float) -> int:
    sums = torch.softmax(logits_V, dim=0).cumsum(dim=0)
    return min(int(torch.searchsorted(sums, uniform * float(sums[-1]))), len(sums) - 1)


def answer_uniforms(seed: int, update: int, ask: Ask, count: int) -> Tensor:
    """[count] float64 numbers of one answer, from a generator seeded by what identifies it."""
    name = f"{seed} {update} {ask[0]} {ask[1]}".encode()
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name).digest()[:7], "big"))
    return torch.rand(count, generator=generator, dtype=torch.float64)
