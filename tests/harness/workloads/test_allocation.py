"""Allocators: who gets the rollouts, and every misuse by name."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.workloads.allocation import (
    AllocationError,
    Allocator,
    UniformAllocator,
    VigorAllocator,
    make_allocator,
)


def run(allocator: Allocator, reward: object = lambda prompt, index: float((index * 7 + prompt) % 3)) -> None:
    while not allocator.done:
        for prompt, count in allocator.requests():
            allocator.observe(prompt, [reward(prompt, index) for index in range(count)])  # type: ignore[operator]
        allocator.refine()


def test_eight_prompts_share_sixty_four_rollouts() -> None:
    allocator = VigorAllocator(8)
    run(allocator)
    assert sorted(allocator.counts, reverse=True) == [30, 14, 6, 6, 2, 2, 2, 2]


def test_the_highest_variance_is_kept_and_ties_go_to_the_lower_index() -> None:
    allocator = VigorAllocator(4, rounds=2)
    for prompt, rewards in enumerate(([0, 0], [0, 1], [0, 1], [0, 9])):
        allocator.observe(prompt, rewards)
    allocator.refine()
    assert allocator.requests() == ((1, 4), (3, 4))


def test_variance_is_over_all_rewards_so_far() -> None:
    allocator = VigorAllocator(2, rounds=3)
    for prompt, rewards in ((0, [0, 4]), (1, [0, 1])):
        allocator.observe(prompt, rewards)
    allocator.refine()
    allocator.observe(0, [2, 2, 2, 2])
    assert allocator.variance(0) == pytest.approx(8 / 6)


@pytest.mark.parametrize(("prompts", "total"), [(8, 64), (16, 128), (3, 38), (1, 30), (5, 54)])
def test_the_budget_is_eight_a_prompt_only_for_multiples_of_eight(prompts: int, total: int) -> None:
    allocator = VigorAllocator(prompts)
    run(allocator)
    assert sum(allocator.counts) == total
    assert (total == 8 * prompts) == (prompts % 8 == 0)


def test_uniform_is_one_round() -> None:
    allocator = UniformAllocator(3, 5)
    run(allocator)
    assert allocator.counts == (5, 5, 5)
    assert allocator.requests() == ()


def observed_twice(allocator: VigorAllocator) -> None:
    allocator.observe(0, [0.0, 1.0])
    allocator.observe(0, [0.0, 1.0])


def inactive(allocator: VigorAllocator) -> None:
    for prompt in range(3):
        allocator.observe(prompt, [0.0, float(prompt)])
    allocator.refine()
    allocator.observe(0, [0.0] * 4)


def over(allocator: VigorAllocator) -> None:
    run(allocator)
    allocator.observe(0, [0.0])


def refined_too_often(allocator: VigorAllocator) -> None:
    run(allocator)
    allocator.refine()


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda a: a.observe(3, [0, 1]), r"prompt 3: expected a prompt in \[0, 3\), got 3"),
        (lambda a: a.observe(-1, [0, 1]), r"prompt -1: expected a prompt in \[0, 3\)"),
        (inactive, r"prompt 0: expected an active prompt \(1, 2\), got prompt 0"),
        (over, r"expected an active prompt \(none, all rounds are over\)"),
        (observed_twice, "prompt 0: expected one observation a round, got a second one"),
        (lambda a: a.observe(1, [0.0]), "prompt 1: expected 2 rewards, got 1"),
        (lambda a: a.observe(1, [0.0, math.nan]), "prompt 1, rollout 1: expected a finite reward, got nan"),
        (lambda a: a.observe(1, [math.inf, 0.0]), "prompt 1, rollout 0: expected a finite reward, got inf"),
        (lambda a: a.refine(), r"refine: expected rewards of all active prompts, got none of \[0, 1, 2\]"),
        (refined_too_often, "refine: expected 4 rounds, got another one"),
    ],
)
def test_misuse_is_named(misuse: object, message: str) -> None:
    with pytest.raises(AllocationError, match=message):
        misuse(VigorAllocator(3))  # type: ignore[operator]


def test_a_refused_observation_leaves_no_trace() -> None:
    allocator = VigorAllocator(2)
    with pytest.raises(AllocationError):
        allocator.observe(0, [0.0, math.nan])
    allocator.observe(0, [0.0, 1.0])
    assert allocator.counts == (2, 0)


def test_unknown_names_and_empty_ranges_are_refused() -> None:
    with pytest.raises(AllocationError, match="allocator: expected one of uniform, vigor, got 'greedy'"):
        make_allocator("greedy", 3)
    with pytest.raises(AllocationError, match="prompts: expected at least 1, got 0"):
        VigorAllocator(0)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 5))
def test_every_round_halves_and_doubles(prompts: int, initial: int, rounds: int) -> None:
    allocator, active, count = VigorAllocator(prompts, initial, rounds), prompts, initial
    while not allocator.done:
        requests = allocator.requests()
        assert [len(requests), requests[0][1]] == [active, count]
        for prompt, asked in requests:
            allocator.observe(prompt, [float(prompt * index % 5) for index in range(asked)])
        allocator.refine()
        active, count = max(1, -(-active // 2)), count * 2
