"""The tiny policy: a float32 table of 6 states x 4 actions, its answers and its rewards.

States 0-2: at prompt p. States 3-5: the last token was a, b, c; the prompt is forgotten by then. Actions a, b, c,
EOS. An answer has at most 3 tokens, EOS included. It earns 1 when it is the prompt's own token, then EOS; else 0.
Shapes: S sequences, T = 3 slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.workloads.uniform_stream import Doubles, UniformStream

PROMPTS, STATES, ACTIONS, EOS, LONGEST = 3, 6, 4, 3, 3
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Answers:
    """[S, T] int64 states and actions (0 past the end), [S, T] bool mask; prompt by prompt."""

    states_ST: Tensor
    action_ids_ST: Tensor
    mask_ST: Tensor

    def rewards(self, start: int = 0, stop: int | None = None) -> Tensor:
        """[stop - start] float32 rewards of these sequences; the first state is the prompt."""
        rows = slice(start, stop)
        actions, prompts = self.action_ids_ST[rows], self.states_ST[rows, 0]
        return ((actions[:, 0] == prompts) & (actions[:, 1] == EOS) & self.mask_ST[rows, 1]).float()


def start_table(device: torch.device | str = "cpu") -> Tensor:
    """[6, 4] zeros: uniform over actions, and the reference throughout."""
    return torch.zeros(STATES, ACTIONS, device=device)


def cumulative(table: Tensor) -> Doubles:
    """[..., 6, 4] float64 cumulative probabilities of each state."""
    sums: Doubles = np.cumsum(torch.softmax(table.detach().cpu().double(), dim=-1).numpy(), axis=-1)
    return sums


def success(table: Tensor) -> Tensor:
    """Exact chance of a rewarded answer, float64: the mean over p of P(p | state p) * P(EOS | state 3 + p)."""
    probabilities = torch.softmax(table.detach().double(), dim=-1)
    prompts = torch.arange(PROMPTS)
    own, end = probabilities[..., prompts, prompts], probabilities[..., PROMPTS + prompts, EOS]
    return (own * end).mean(dim=-1)


def sample(table: Tensor, stream: UniformStream, samples_per_prompt: int) -> Answers:
    """Answers drawn one after another, prompt by prompt; a token is the first whose cumulative chance >= u.

    An answer uses as many numbers as it has tokens, so where the next one starts depends on all before it.
    """
    sequences = PROMPTS * samples_per_prompt
    uniforms = stream.upcoming(sequences * LONGEST)
    choices = _choices(cumulative(table), uniforms).tolist()
    states, actions = np.zeros((2, sequences, LONGEST), dtype=np.int64)
    mask, used = np.zeros((sequences, LONGEST), dtype=bool), 0
    for sequence in range(sequences):
        state = sequence // samples_per_prompt
        for slot in range(LONGEST):
            action = choices[state][used]
            states[sequence, slot], actions[sequence, slot], mask[sequence, slot] = state, action, True
            used += 1
            if action == EOS:
                break
            state = PROMPTS + action
    stream.consume(used)
    return _answers(states, actions, mask, table.device)


def sample_at_once(tables_R: Tensor, uniforms_RST: Doubles) -> Answers:
    """Answers of R runs at once, three numbers each whatever their length; sequences are run by run."""
    runs, sequences, _ = uniforms_RST.shape
    sums = cumulative(tables_R)
    run = np.arange(runs)[:, None]
    state = np.repeat(np.arange(PROMPTS), sequences // PROMPTS)[None].repeat(runs, axis=0)
    alive = np.ones((runs, sequences), dtype=bool)
    columns: list[tuple[Integers, Integers, NDArray[np.bool_]]] = []
    for slot in range(LONGEST):
        chances = sums[run, state][..., : ACTIONS - 1]
        action = (chances < uniforms_RST[:, :, slot, None]).sum(axis=-1)
        columns.append((np.where(alive, state, 0), np.where(alive, action, 0), alive))
        alive = alive & (action != EOS)
        state = np.where(alive, PROMPTS + action, 0)
    states, actions, masks = (
        np.stack(column, axis=-1).reshape(-1, LONGEST) for column in zip(*columns, strict=True)
    )
    return _answers(states, actions, masks, tables_R.device)


def _choices(sums: Doubles, uniforms: Doubles) -> Integers:
    """[6, n] the action that each number would pick in each state."""
    picked = [np.searchsorted(row[: ACTIONS - 1], uniforms, side="left") for row in sums]
    return np.stack(picked).astype(np.int64)


def _answers(states: Integers, actions: Integers, mask: NDArray[np.bool_], device: torch.device) -> Answers:
    tensors = (torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in (states, actions, mask))
    return Answers(*tensors)


def table_gradients(logits_gradient_STA: Tensor, answers: Answers, start: int = 0) -> Tensor:
    """[S, 6, 4] gradient of each sequence in the table, slots of a sequence added in order.

    `logits_gradient_STA` belongs to sequences [start, start + S); masked slots hold +0.0 and add to state 0.
    """
    sequences = logits_gradient_STA.shape[0]
    gradient = logits_gradient_STA.new_zeros(sequences, STATES, ACTIONS)
    rows = torch.arange(sequences, device=gradient.device)
    states = answers.states_ST[start : start + sequences]
    for slot in range(LONGEST):
        gradient[rows, states[:, slot]] += logits_gradient_STA[:, slot]
    return gradient
