"""The length trade-off against exact enumeration and the C++ program's samples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from harness.workloads.length_tradeoff import LengthTask, exact_update, sample_answers, table
from harness.workloads.uniform_stream import Mt19937Stream


def test_the_table_of_the_document() -> None:
    rows = table()
    assert [row.exact for row in rows] == pytest.approx([0.0916707529, 0.1466171132, 0.2881200000], abs=1e-8)
    assert [row.sampled for row in rows] == pytest.approx([0.09133101, 0.14614544, 0.28735213], abs=1e-8)
    assert [row.standard_error for row in rows] == pytest.approx([0.00016480, 0.00025577, 0.00053766], abs=1e-8)


def test_samples_lie_within_three_standard_errors() -> None:
    assert all(abs(row.sampled - row.exact) < 3 * row.standard_error for row in table(groups=20_000, seed=1))


def test_only_alpha_one_is_the_derivative_of_the_expected_reward() -> None:
    def expected_reward(logit: float) -> float:
        chance = 1 / (1 + np.exp(-logit))
        return float(chance**4)  # five tokens or more: the first four go on

    logit, step = float(np.log(0.7 / 0.3)), 1e-6
    derivative = (expected_reward(logit + step) - expected_reward(logit - step)) / (2 * step)
    assert exact_update(1.0) == pytest.approx(derivative, abs=1e-8)
    assert abs(exact_update(0.0) - derivative) > 0.1


def test_enumeration_agrees_with_all_sequences_written_out() -> None:
    task = LengthTask(0.7, 4, 3)
    expected, means = 0.0, np.zeros(2)
    for choices in itertools.product((True, False), repeat=4):
        tokens = list(itertools.takewhile(bool, choices))
        length = min(len(tokens) + 1, 4)
        chance = float(np.prod([0.7 if each else 0.3 for each in choices]))
        score = sum(0.3 if each else -0.7 for each in choices[:length])
        weighted = length**-0.5 * score
        reward = float(length >= 3)
        expected += chance * reward * weighted
        means += chance * np.array([reward, weighted])
    assert exact_update(0.5, task) == pytest.approx(expected - means[0] * means[1], abs=1e-12)


def test_samples_are_those_of_a_plain_loop() -> None:
    task, stream = LengthTask(), Mt19937Stream(4)
    lengths, ended = sample_answers(200, Mt19937Stream(4), task)
    for length, end in zip(lengths, ended, strict=True):
        drawn = 0
        while True:
            goes_on = stream.upcoming(1)[0] < task.go_on
            stream.consume(1)
            drawn += 1
            if not goes_on or drawn == task.longest:
                break
        assert (drawn, not goes_on) == (length, end)
