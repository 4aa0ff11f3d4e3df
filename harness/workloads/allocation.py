"""Who gets the next rollouts: every prompt the same number, or those whose rewards vary most (VIGOR).

An allocator works in rounds: `requests()` says how many rollouts of which prompt, `observe()` takes the rewards
of one prompt, `refine()` opens the next round once all were observed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from grpo_contract import GRPOVerifyError, Problem


class AllocationError(GRPOVerifyError):
    """An allocator that was used out of turn, or given rewards that do not fit its requests."""

    code = "allocation"
    title = "invalid allocation"


class Allocator(Protocol):
    """What a trainer needs of an allocator."""

    @property
    def done(self) -> bool:
        """Whether all rounds are over."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Rollouts of each prompt observed so far."""

    def requests(self) -> tuple[tuple[int, int], ...]:
        """(prompt, rollouts) of this round, prompts ascending; empty when done."""

    def observe(self, prompt: int, rewards: Sequence[float]) -> None:
        """Take the rewards of one prompt of this round."""

    def refine(self) -> None:
        """Close the round."""


class _Rounds:
    """Rounds over prompts, with every check; a subclass says who comes next."""

    def __init__(self, prompts: int, first: int, rounds: int) -> None:
        for name, value in (("prompts", prompts), ("rollouts", first), ("rounds", rounds)):
            if value < 1:
                raise _error("range", name, "at least 1", str(value))
        self.prompts, self.rounds, self.round = prompts, rounds, 0
        self.rewards: list[list[float]] = [[] for _ in range(prompts)]
        self._count = first
        self._active: tuple[int, ...] = tuple(range(prompts))
        self._observed: set[int] = set()

    @property
    def done(self) -> bool:
        return self.round == self.rounds

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(len(each) for each in self.rewards)

    def requests(self) -> tuple[tuple[int, int], ...]:
        return () if self.done else tuple((prompt, self._count) for prompt in self._active)

    def observe(self, prompt: int, rewards: Sequence[float]) -> None:
        """Raises AllocationError for an unknown or inactive prompt, one observed already, a wrong number of
        rewards, or a reward that is not finite."""
        place = f"prompt {prompt}"
        if not 0 <= prompt < self.prompts:
            raise _error("unknown", place, f"a prompt in [0, {self.prompts})", str(prompt))
        if self.done or prompt not in self._active:
            active = ", ".join(map(str, self._active)) if not self.done else "none, all rounds are over"
            raise _error("inactive", place, f"an active prompt ({active})", f"prompt {prompt}")
        if prompt in self._observed:
            raise _error("twice", place, "one observation a round", "a second one")
        if len(rewards) != self._count:
            raise _error("count", place, f"{self._count} rewards", f"{len(rewards)}")
        for index, reward in enumerate(rewards):
            if not math.isfinite(reward):
                raise _error("reward", f"{place}, rollout {index}", "a finite reward", str(reward))
        self.rewards[prompt] += map(float, rewards)
        self._observed.add(prompt)

    def refine(self) -> None:
        """Raises AllocationError while a prompt of this round has no rewards, and when all rounds are over."""
        if self.done:
            raise _error("done", "refine", f"{self.rounds} rounds", "another one")
        missing = [prompt for prompt in self._active if prompt not in self._observed]
        if missing:
            raise _error("early", "refine", "rewards of all active prompts", f"none of {missing}")
        self._observed.clear()
        self.round += 1
        if not self.done:
            self._next()

    def _next(self) -> None:
        return None


class UniformAllocator(_Rounds):
    """One round, the same number of rollouts for every prompt."""

    def __init__(self, prompts: int, rollouts: int = 8) -> None:
        super().__init__(prompts, rollouts, 1)


class VigorAllocator(_Rounds):
    """VIGOR: after each round keep the half of the active prompts whose rewards varied most, and double.

    Kept are max(1, ceil(n / 2)) of n, by population variance of all rewards seen; ties go to the lower index.
    Eight prompts, two initial rollouts, four rounds: 30 14 6 6 2 2 2 2, sorted. The total is 8 a prompt only
    where the number of prompts is a multiple of 8.
    """

    def __init__(self, prompts: int, initial: int = 2, rounds: int = 4) -> None:
        super().__init__(prompts, initial, rounds)

    def _next(self) -> None:
        ranked = sorted(self._active, key=lambda prompt: (-self.variance(prompt), prompt))
        self._active = tuple(sorted(ranked[: max(1, -(-len(ranked) // 2))]))
        self._count *= 2

    def variance(self, prompt: int) -> float:
        """Population variance of all rewards of `prompt` so far."""
        return float(np.var(np.asarray(self.rewards[prompt]))) if self.rewards[prompt] else 0.0


ALLOCATORS = ("uniform", "vigor")


def make_allocator(name: str, prompts: int, rollouts: int = 8) -> Allocator:
    """A fresh allocator for one update; `rollouts` of each prompt under `uniform`, while `vigor` starts with 2."""
    if name not in ALLOCATORS:
        raise _error("name", "allocator", f"one of {', '.join(ALLOCATORS)}", repr(name))
    return UniformAllocator(prompts, rollouts) if name == "uniform" else VigorAllocator(prompts)


def _error(kind: str, where: str, expected: str, got: str) -> AllocationError:
    return AllocationError(Problem(f"allocation.{kind}", where, expected, got))
