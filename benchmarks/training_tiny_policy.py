"""The tiny policy: a plain scalar loop against arrays, one run and many at once.

The scalar loop is the C++ program written in Python: no array, one number at a time. Seconds are medians per run
of the given number of updates, measured in turn; the ratio says how many times as fast the arrays are.

    python benchmarks/training_tiny_policy.py [--updates 100] [--runs 1 30 100] [--repeats 9]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from harness.workloads.tiny_runs import train_many

PROMPTS, SAMPLES, LONGEST, EOS = 3, 16, 3, 3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 30, 100])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    works: dict[int, Callable[[], object]] = {0: lambda: scalar_run(0, options.updates)}
    for runs in options.runs:
        works[runs] = lambda runs=runs: train_many(range(runs), updates=options.updates)  # type: ignore[misc]
    scalar, *each = timed(list(works.values()), options.repeats)
    print(f"scalar loop            {scalar:8.4f} s a run")
    for runs, seconds in zip(options.runs, each, strict=True):
        ratio = scalar * runs / seconds
        print(f"arrays, {runs:3d} at once     {seconds / runs:8.4f} s a run, {ratio:5.1f} times as fast")


def timed(works: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of each; all are run in turn, so that a busy machine slows them alike."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, taken in zip(works, seconds, strict=True):
            started = time.perf_counter()
            work()
            taken.append(time.perf_counter() - started)
    return [statistics.median(taken) for taken in seconds]


def scalar_run(seed: int, updates: int) -> float:
    """One run, and its exact success."""
    draw = random.Random(seed)
    table = [[0.0] * 4 for _ in range(6)]
    for _ in range(updates):
        answers = [_answer(table, prompt, draw) for prompt in range(PROMPTS) for _ in range(SAMPLES)]
        advantages = _advantages(answers)
        for _ in range(4):
            gradient = _gradient(table, answers, advantages)
            for state in range(6):
                for action in range(4):
                    table[state][action] -= 0.5 * gradient[state][action]
    chances = [_softmax(row) for row in table]
    return sum(chances[p][p] * chances[3 + p][EOS] for p in range(PROMPTS)) / PROMPTS


def _softmax(row: list[float]) -> list[float]:
    largest = max(row)
    powers = [math.exp(each - largest) for each in row]
    total = sum(powers)
    return [each / total for each in powers]


Answer = tuple[float, list[tuple[int, int, float]]]


def _answer(table: list[list[float]], prompt: int, draw: random.Random) -> Answer:
    """Reward, and (state, action, old log-probability) of each token."""
    tokens: list[tuple[int, int, float]] = []
    state = prompt
    for _ in range(LONGEST):
        chances, uniform, total, action = _softmax(table[state]), draw.random(), 0.0, 0
        for action in range(4):
            total += chances[action]
            if total >= uniform:
                break
        tokens.append((state, action, math.log(chances[action])))
        if action == EOS:
            break
        state = 3 + action
    return float([token[1] for token in tokens] == [prompt, EOS]), tokens


def _advantages(answers: list[Answer]) -> list[float]:
    found: list[float] = []
    for start in range(0, len(answers), SAMPLES):
        rewards = [reward for reward, _ in answers[start : start + SAMPLES]]
        mean = sum(rewards) / SAMPLES
        spread = math.sqrt(sum((each - mean) ** 2 for each in rewards) / SAMPLES + 1e-8)
        found += [0.0 if len(set(rewards)) == 1 else (each - mean) / spread for each in rewards]
    return found


def _gradient(table: list[list[float]], answers: list[Answer], advantages: list[float]) -> list[list[float]]:
    gradient = [[0.0] * 4 for _ in range(6)]
    for (_, tokens), advantage in zip(answers, advantages, strict=True):
        for state, action, old in tokens:
            chances = _softmax(table[state])
            logp = math.log(chances[action])
            ratio = math.exp(logp - old)
            binds = (advantage > 0 and ratio > 1.2) or (advantage < 0 and ratio < 0.8)
            slope = 0.0 if binds else -ratio * advantage
            slope -= 0.01 * (math.exp(math.log(0.25) - logp) - 1.0)
            slope /= len(tokens) * len(answers)
            for column in range(4):
                gradient[state][column] += slope * ((column == action) - chances[column])
    return gradient


if __name__ == "__main__":
    main()
