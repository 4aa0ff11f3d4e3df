"""The tiny policy: a float32 table of 6 states x 4 actions, its answers and its rewards.

States 0-2: at prompt p. States 3-5: the last token was a, b, c; the prompt is forgotten by then. Actions a, b, c,
EOS. An answer has at most 3 tokens, EOS included. It earns 1 when it is the prompt's own token, then EOS; else 0.
Shapes: S sequences, T = 3 slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.workloads.uniform_stream import Doubles, UniformStream

PROMPTS, STATES, ACTIONS, EOS, LONGEST = 3, 6, 4, 3, 3
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
_NEXT = np.array([PROMPTS, PROMPTS + 1, PROMPTS + 2, 0])
"""The state after each action; after EOS there is none."""


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
    sums: Doubles = torch.softmax(table.detach().cpu(), dim=-1, dtype=torch.float64).numpy().cumsum(axis=-1)
    return sums


def success(table: Tensor) -> Tensor:
    """Exact chance of a rewarded answer, float64: the mean over p of P(p | state p) * P(EOS | state 3 + p)."""
    probabilities = torch.softmax(table.detach().double(), dim=-1)
    prompts = torch.arange(PROMPTS)
    own, end = probabilities[..., prompts, prompts], probabilities[..., PROMPTS + prompts, EOS]
    return (own * end).mean(dim=-1)


class Drawn(NamedTuple):
    """[S, T] int64 states and actions (0 past the end), [S, T] bool mask, as arrays; prompt by prompt."""

    states_ST: Integers
    action_ids_ST: Integers
    mask_ST: Booleans

    def rewarded(self) -> Booleans:
        """[S] whether an answer is its prompt's own token, then EOS; the first state is the prompt."""
        actions, prompts = self.action_ids_ST, self.states_ST[:, 0]
        found: Booleans = (actions[:, 0] == prompts) & (actions[:, 1] == EOS) & self.mask_ST[:, 1]
        return found


def sample(table: Tensor, stream: UniformStream, samples_per_prompt: int) -> Answers:
    """The answers of `draw`, on the table's device."""
    drawn = draw(table, stream, samples_per_prompt)
    return Answers(*(torch.from_numpy(each).to(table.device) for each in drawn))


def draw(table: Tensor, stream: UniformStream, samples_per_prompt: int) -> Drawn:
    """Answers drawn one after another, prompt by prompt; a token is the first whose cumulative chance >= u.

    An answer uses as many numbers as it has tokens, so where the next one starts depends on all before it.
    """
    sequences = PROMPTS * samples_per_prompt
    choices = _choices(cumulative(table), stream.upcoming(sequences * LONGEST)).tolist()
    states: list[int] = []
    actions: list[int] = []
    lengths: list[int] = []
    for sequence in range(sequences):
        state, first = sequence // samples_per_prompt, len(actions)
        for used in range(first, first + LONGEST):
            states.append(state)
            actions.append(choices[state][used])
            if actions[-1] == EOS:
                break
            state = PROMPTS + actions[-1]
        lengths.append(len(actions) - first)
    stream.consume(len(actions))
    mask = np.arange(LONGEST) < np.array(lengths)[:, None]
    drawn = Drawn(np.zeros(mask.shape, np.int64), np.zeros(mask.shape, np.int64), mask)
    drawn.states_ST[mask], drawn.action_ids_ST[mask] = states, actions
    return drawn


def draw_at_once(tables_R: Tensor, uniforms_RST: Doubles) -> Drawn:
    """Answers of R runs at once, three numbers each whatever their length; sequences are run by run.

    What each number would pick is found for all states of its run, and then read off, slot by slot.
    """
    runs, sequences, _ = uniforms_RST.shape
    chances = cumulative(tables_R).swapaxes(1, 2)[:, : ACTIONS - 1, :, None]
    below = (chances < uniforms_RST.reshape(runs, 1, 1, -1)).view(np.int8)
    choices = below.sum(axis=1, dtype=np.int8).reshape(-1)
    prompt, place = _places(runs, sequences)
    states, actions = np.empty((2, runs * sequences, LONGEST), dtype=np.int64)
    mask = np.empty((runs * sequences, LONGEST), dtype=bool)
    state, alive = prompt, np.True_
    for slot in range(LONGEST):
        action = choices.take(place + state * (sequences * LONGEST))
        states[:, slot], actions[:, slot], mask[:, slot] = state, action, alive
        place, state, alive = place + 1, _NEXT.take(action), mask[:, slot] & (action != EOS)
    states *= mask
    actions *= mask
    return Drawn(states, actions, mask)


@lru_cache(maxsize=8)
def _places(runs: int, sequences: int) -> tuple[Integers, Integers]:
    """Of each sequence its prompt, and where its first number's choice in state 0 of its run lies."""
    prompt = np.tile(np.repeat(np.arange(PROMPTS), sequences // PROMPTS), runs)
    number = np.arange(runs * sequences)
    return prompt, number * LONGEST + number // sequences * ((STATES - 1) * sequences * LONGEST)


def _choices(sums: Doubles, uniforms: Doubles) -> Integers:
    """[6, n] the action that each number would pick in each state."""
    picked = [np.searchsorted(row[: ACTIONS - 1], uniforms, side="left") for row in sums]
    return np.stack(picked).astype(np.int64)


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
