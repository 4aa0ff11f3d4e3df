"""The summation tree: one shape for a number of leaves, whoever holds which."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_contract import even_bounds
from harness.workloads.combine import Combine, GradientSum
from harness.workloads.gradient_tree import TreeSum, in_leaf_order, nodes_of, root_of, tree_sum
from harness.workloads.ranks import Place
from support.training_runs import run_virtual_ranks


def leaves_of(count: int, width: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def in_order(leaves: torch.Tensor, start: int = 0, total: int | None = None) -> TreeSum:
    tree = TreeSum(len(leaves) if total is None else total)
    for index, leaf in enumerate(leaves, start):
        tree.add_leaf(index, leaf.clone())
    return tree


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 70), st.randoms())
def test_any_order_of_leaves_gives_the_same_bits(count: int, random: object) -> None:
    leaves = leaves_of(count)
    order = list(range(count))
    random.shuffle(order)  # type: ignore[attr-defined]
    tree = TreeSum(count)
    for index in order:
        tree.add_leaf(index, leaves[index].clone())
    assert torch.equal(tree.root(), in_order(leaves).root())
    assert torch.equal(tree.root(), tree_sum(leaves))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(1, 12))
def test_any_split_over_ranks_gives_the_same_bits(count: int, degree: int) -> None:
    leaves, degree = leaves_of(count), min(degree, count)
    nodes = []
    for start, stop in even_bounds(count, degree):
        held = in_order(leaves[start:stop], start, count).held
        assert sorted(held) == sorted(nodes_of(start, stop, count))
        nodes += list(zip(nodes_of(start, stop, count), in_leaf_order(held), strict=True))
    assert torch.equal(root_of(nodes, count), tree_sum(leaves))


def test_holds_few_sums_while_leaves_come_in_order() -> None:
    tree, most = TreeSum(64), 0
    for index, leaf in enumerate(leaves_of(64)):
        tree.add_leaf(index, leaf.clone())
        most = max(most, len(tree.held))
    assert most == 6


def test_missing_leaves_are_told() -> None:
    with pytest.raises(ValueError, match="a tree over 4 leaves: expected all of them"):
        in_order(leaves_of(3), 0, 4).root()


def combined(leaves: torch.Tensor, degree: int, combine: Combine = Combine.FIXED_ORDER) -> list[torch.Tensor]:
    bounds = even_bounds(len(leaves), degree)
    sums = [GradientSum(combine, bounds, Place(rank, degree)) for rank in range(degree)]
    for each, (start, stop) in zip(sums, bounds, strict=True):
        for index in range(start, stop):
            each.add_leaf(index, leaves[index].clone())
    return run_virtual_ranks([each.combined() for each in sums])


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 7, 13])
@pytest.mark.parametrize("bucket", [3, 1 << 24])
def test_ranks_exchange_shares_and_end_with_the_root(
    degree: int, bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.workloads.combine.BUCKET", bucket)
    leaves = leaves_of(13, 11)
    assert all(torch.equal(each, tree_sum(leaves)) for each in combined(leaves, degree))


def test_all_reduce_depends_on_the_split() -> None:
    leaves = leaves_of(16, 64)
    alone, two = (combined(leaves, degree, Combine.ALL_REDUCE)[0] for degree in (1, 2))
    assert not torch.equal(alone, two)
    torch.testing.assert_close(alone, two)


def test_ranks_out_of_step_are_told() -> None:
    bounds = even_bounds(2, 2)
    fixed, reduced = (
        GradientSum(combine, bounds, Place(rank, 2))
        for rank, combine in enumerate((Combine.FIXED_ORDER, Combine.ALL_REDUCE))
    )
    fixed.add_leaf(0, torch.ones(4))
    reduced.add_leaf(1, torch.ones(4))
    with pytest.raises(RuntimeError, match="out of step"):
        run_virtual_ranks([fixed.combined(), reduced.combined()])
