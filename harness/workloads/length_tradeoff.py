"""The length trade-off: which update a length weight L^(alpha - 1) induces, where every outcome can be listed.

The policy goes on with chance p and else ends (EOS), for at most 8 tokens; an answer earns 1 when it has at
least 5. The derivative of log p in the policy's one logit is 1 - p for a token that goes on and -p for EOS; S is
their sum over an answer of L tokens. Only alpha 1 gives the derivative of the expected reward.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.workloads.uniform_stream import Mt19937Stream, UniformStream

Doubles = NDArray[np.float64]
ALPHAS = (0.0, 0.5, 1.0)
GROUP_SIZE = 8
CHUNK = 1 << 18


@dataclass(frozen=True)
class LengthTask:
    """Chance to go on, most tokens of an answer, and the tokens it needs to be rewarded."""

    go_on: float = 0.7
    longest: int = 8
    rewarded_from: int = 5

    def scores(self, lengths: Doubles, ended: NDArray[np.bool_]) -> Doubles:
        """S of answers: every token but a final EOS goes on."""
        went_on = lengths - ended
        return (1.0 - self.go_on) * went_on - self.go_on * ended

    def rewards(self, lengths: Doubles) -> Doubles:
        """1.0 or 0.0 for each answer."""
        return (lengths >= self.rewarded_from).astype(np.float64)


@dataclass(frozen=True)
class Row:
    """One alpha: the exact update, its estimate from samples, and the estimate's standard error."""

    alpha: float
    exact: float
    sampled: float
    standard_error: float


def exact_update(alpha: float, task: LengthTask | None = None) -> float:
    """E[r w S] - E[r] E[w S] over all outcomes, with w = L^(alpha - 1)."""
    task = task or LengthTask()
    ends = np.arange(1, task.longest + 1, dtype=np.float64)
    lengths = np.append(ends, float(task.longest))
    ended = np.append(np.ones(task.longest, dtype=bool), False)
    chances = np.append(task.go_on ** (ends - 1) * (1 - task.go_on), task.go_on**task.longest)
    rewards = task.rewards(lengths)
    weighted = lengths ** (alpha - 1.0) * task.scores(lengths, ended)
    return float((chances * rewards * weighted).sum() - (chances * rewards).sum() * (chances * weighted).sum())


def sample_answers(
    count: int, stream: UniformStream, task: LengthTask | None = None
) -> tuple[Doubles, NDArray[np.bool_]]:
    """Lengths, and whether EOS came, of `count` answers drawn one after another; u < p goes on.

    Between two EOS lie so many tokens that go on: every 8 of them are an answer of their own, the rest is the
    answer that the EOS ends.
    """
    task = task or LengthTask()
    lengths: list[Doubles] = []
    ended: list[NDArray[np.bool_]] = []
    found = 0
    while found < count:
        going = stream.upcoming(CHUNK) < task.go_on
        stops = np.flatnonzero(~going)
        runs = np.diff(np.concatenate(([-1], stops))) - 1
        full = runs // task.longest
        last = np.cumsum(full + 1) - 1
        chunk = np.full(last[-1] + 1, float(task.longest))
        chunk[last] = runs % task.longest + 1
        lengths.append(chunk)
        ended.append(np.isin(np.arange(len(chunk)), last, assume_unique=True))
        found += len(chunk)
        stream.consume(int(stops[-1]) + 1)
    return np.concatenate(lengths)[:count], np.concatenate(ended)[:count]


def group_updates(alpha: float, lengths_NG: Doubles, ended_NG: NDArray[np.bool_], task: LengthTask) -> Doubles:
    """[N] the update of each group of G answers: mean of (r - group mean) w S, times G / (G - 1) (unbiased)."""
    size = lengths_NG.shape[1]
    rewards = task.rewards(lengths_NG)
    advantages = rewards - rewards.mean(axis=1, keepdims=True)
    weighted = lengths_NG ** (alpha - 1.0) * task.scores(lengths_NG, ended_NG)
    updates: Doubles = (advantages * weighted).mean(axis=1) * (size / (size - 1))
    return updates


def table(*, groups: int = 100_000, seed: int = 12345) -> list[Row]:
    """Exact and sampled updates; the answers are the same for all alphas."""
    task = LengthTask()
    lengths, ended = sample_answers(groups * GROUP_SIZE, Mt19937Stream(seed), task)
    shape = (groups, GROUP_SIZE)
    rows = []
    for alpha in ALPHAS:
        updates = group_updates(alpha, lengths.reshape(shape), ended.reshape(shape), task)
        error = float(updates.std(ddof=1)) / groups**0.5
        rows.append(Row(alpha, exact_update(alpha, task), float(updates.mean()), error))
    return rows
