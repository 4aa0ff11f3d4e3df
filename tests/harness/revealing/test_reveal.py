"""Summation orders found from outside: of reducers with a known tree, of torch.sum, and of our op."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.revealing.probe_shape import ProbeShape
from harness.revealing.probes import absorption, opposite
from harness.revealing.reveal import Revealed, reveal, reveal_status
from harness.revealing.reveal_text import Asked, reveal_content, reveal_text
from harness.revealing.sum_trees import (
    NotRevealedError,
    Tree,
    canonical,
    first_difference,
    leaves_of,
    tree_from_counts,
    tree_from_triples,
)
from harness.revealing.tree_names import folded, name_of, notation, pairwise, sequential
from loss_ops.controls import faulty_op
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.trees import fold_sum

SMALL = ProbeShape(sequences=4, tokens=8, columns=8, tiles=4)


@dataclass(frozen=True)
class Function:
    """A function as a foreign op."""

    apply: Callable[..., Any]


def added(tree: Tree, terms: Tensor) -> Tensor:
    """The sums of rows of terms in the order of a tree, by hand."""
    if isinstance(tree, int):
        return terms[:, tree]
    return reduce(torch.add, (added(part, terms) for part in tree))


def blocked(parts: list[Tree]) -> Tree:
    return sequential([sequential(parts[start : start + 4]) for start in range(0, len(parts), 4)])


KNOWN: dict[str, tuple[Callable[[list[Tree]], Tree], str]] = {
    "fold": (folded, "folded by halves"),
    "sequential": (sequential, "one after the other"),
    "pairwise": (pairwise, "neighbours in pairs"),
    "blocked": (blocked, "blocks of 4, each one after the other; these one after the other"),
}


@pytest.mark.parametrize("count", [5, 8, 12, 16])
@pytest.mark.parametrize("name", KNOWN)
def test_a_known_tree_is_found_by_both_probes(name: str, count: int) -> None:
    build, words = KNOWN[name]
    wanted = canonical(build(list(range(count))))

    def reducer(terms: Tensor) -> Tensor:
        return added(wanted, terms)

    assert tree_from_triples(range(count), absorption(reducer, count)) == wanted
    assert tree_from_counts(range(count), opposite(reducer, count)) == wanted
    assert name_of(wanted) is not None
    if count == 12 and name != "blocked":
        assert name_of(wanted) == words


def test_blocks_are_named() -> None:
    assert name_of(canonical(blocked(list(range(12))))) == KNOWN["blocked"][1]
    assert notation(canonical(blocked(list(range(8))))) == "((((0 1) 2) 3) (((4 5) 6) 7))"


@pytest.mark.parametrize("count", [8, 16, 33, 40])
def test_the_tree_of_torch_sum_gives_its_bits(count: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def rowwise(terms: Tensor) -> Tensor:
        return torch.stack([row.sum() for row in terms])

    tree = tree_from_triples(range(count), absorption(rowwise, count))
    assert tree == tree_from_counts(range(count), opposite(rowwise, count))
    terms = torch.randn(200, count, generator=torch.Generator().manual_seed(count))
    assert torch.equal(added(tree, terms), rowwise(terms))
    torch.set_num_threads(threads)


def test_our_fold_is_what_it_says() -> None:
    tree = tree_from_triples(range(11), absorption(lambda terms: fold_sum(terms, 1), 11))
    assert name_of(tree) == "folded by halves"


@pytest.mark.parametrize(
    "reducer",
    [lambda terms: terms.double().sum(1), lambda terms: terms[:, torch.randperm(terms.shape[1])].cumsum(1)[:, -1]],
    ids=["a wider accumulator", "an order that changes"],
)
def test_what_is_no_tree_is_not_revealed(reducer: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(NotRevealedError, match="fits no tree"):
        tree_from_triples(range(8), absorption(reducer, 8))


def test_a_step_that_cannot_be_looked_into_stays_whole() -> None:
    def three_at_once(terms: Tensor) -> Tensor:
        """Threes aligned to their largest and cut there, as a matrix unit adds."""
        threes = terms.double().unflatten(1, (-1, 3))
        last_place = threes.abs().amax(2, keepdim=True) * 2.0**-23
        groups = ((threes / last_place).nan_to_num().trunc() * last_place).sum(2).float()
        return added(sequential(range(3)), groups)

    tree = tree_from_counts(range(9), opposite(three_at_once, 9))
    assert tree == (((0, 1, 2), (3, 4, 5)), (6, 7, 8))


def test_the_first_difference_is_the_smallest_subtree() -> None:
    one, other = canonical(folded(range(8))), canonical(pairwise(range(8)))
    assert first_difference(one, other) == ((0, 4), (0, 1))
    assert first_difference(one, one) is None
    assert leaves_of(one) == [0, 4, 2, 6, 1, 5, 3, 7]


def test_what_is_never_resolved_is_not_revealed() -> None:
    """All answers are no, as of a tree whose terms meet in one step: said instead of guessed."""
    with pytest.raises(NotRevealedError, match="does not show in what is computed from it"):
        absorption(lambda terms: fold_sum(terms, 1).bfloat16().float(), 8)


def by_name(found: list[Revealed]) -> dict[str, Revealed]:
    return {each.name: each for each in found}


def test_our_op_adds_in_one_order_at_every_layout() -> None:
    found = reveal("grpo_loss", [(1, 1), (1, 2), (2, 2)], SMALL)
    assert reveal_status(found) == 0
    for each in found:
        assert each.trees.keys() == {"1x1", "1x2", "2x2"}
        assert not each.refusals
    trees = {each.name: each.trees["1x1"] for each in found}
    assert trees["token sum, policy"] == trees["token sum, kl"] == canonical(folded(range(8)))
    assert trees["sequence sum"] == canonical(folded(range(4)))
    tiles = [folded(range(start, start + 2)) for start in range(0, 8, 2)]
    assert trees["vocabulary sum"] == canonical(folded(tiles))


@pytest.mark.parametrize(
    ("fault", "layout", "changed", "words"),
    [
        (
            "token_sum_regrouped_per_rank",
            (1, 2),
            {"token sum, policy", "token sum, kl"},
            "(0 4) where 1x2 adds (0 2)",
        ),
        ("tiles_doubled_under_tp", (2, 1), {"vocabulary sum"}, "((0 1) (4 5)) where 2x1 adds ((0 1) (2 3))"),
        ("sequence_totals_all_reduced", (1, 2), {"sequence sum"}, "(0 2) where 1x2 adds (0 1)"),
    ],
)
def test_a_planted_order_is_revealed(fault: str, layout: tuple[int, int], changed: set[str], words: str) -> None:
    found = reveal(faulty_op(fault), [(1, 1), layout], SMALL)
    assert {each.name for each in found if not each.agrees} == changed
    assert reveal_status(found) == 1
    text = reveal_text(Asked(fault), found)
    assert f"first difference: 1x1 adds {words}" in text
    assert reveal_content(Asked(fault), found)["exit_status"] == 1


def without_gradient(*tensors: Tensor, **call: Any) -> dict[str, Tensor]:
    """The good op, its gradient lost as in a narrow type."""
    result = DistributedGRPOLossOp().apply(*tensors, **call)
    return {"loss": result.loss * 0, "per_sequence_kl": result.per_sequence_kl}


def test_the_vocabulary_is_read_from_the_kl_where_the_gradient_shows_nothing() -> None:
    found = by_name(reveal(Function(without_gradient), [(1, 1)], SMALL))["vocabulary sum"]
    assert found.trees == by_name(reveal("grpo_loss", [(1, 1)], SMALL))["vocabulary sum"].trees


def test_what_neither_shows_is_not_revealed() -> None:
    def bare(*tensors: Tensor, **call: Any) -> dict[str, Tensor]:
        return {"loss": without_gradient(*tensors, **call)["loss"]}

    found = by_name(reveal(Function(bare), [(1, 1)], SMALL))["vocabulary sum"]
    assert not found.trees
    assert re.match("by the gradient: .*; by the KL: the op returns no per_sequence_kl", found.refusals["1x1"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_logits_carry_the_probes_they_can(dtype: str) -> None:
    found = reveal("grpo_loss", [(1, 1), (2, 2)], replace(SMALL, dtype=dtype))
    wide = by_name(reveal("grpo_loss", [(1, 1)], SMALL))
    for each in found:
        if dtype == "float16" and each.about.endswith("opposites"):
            assert "float16 logits cannot hold" in each.refusals["1x1"]
        else:
            assert set(each.trees.values()) == {wide[each.name].trees["1x1"]}
    assert reveal_status(found) == 0


def test_what_needs_real_ranks_is_said() -> None:
    found = reveal("examples.all_reduce_loss:all_reduce_loss", [(1, 1), (1, 2)], SMALL)
    assert all("need real ranks" in each.refusals["1x2"] for each in found)
    assert by_name(found)["token sum, policy"].trees.keys() == {"1x1"}
    assert reveal_status(found) == 3
    assert "cannot be revealed" in reveal_text(Asked("example"), found)
