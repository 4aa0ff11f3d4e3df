"""Summation trees: found by questions about a reducer, named, printed and compared. No torch.

A tree is a leaf (the index of a term) or a tuple of two or more trees that are added to each other; one with
more than two is a step whose inner order nothing outside can see. Order within a step does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TypeAlias

Tree: TypeAlias = "int | tuple[Tree, ...]"
Triple = tuple[int, int, int]
Ask = Callable[[Sequence[Triple]], Sequence[bool]]
"""Of each (i, j, k): are terms j and k added to each other before either meets term i?"""
Count = Callable[[Sequence[tuple[int, int]]], Sequence[int]]
"""Of each (i, j): how many terms does the smallest subtree with both i and j have?"""
MOST_CHECKED = 64


class NotRevealedError(Exception):
    """The answers do not determine one tree; the text says why."""


def tree_from_triples(leaves: Sequence[int], ask: Ask) -> Tree:
    """The tree over `leaves`, from which two of three terms meet first; checked against further answers.

    Raises NotRevealedError when no tree of additions gives these answers.
    """
    tree = canonical(_from_triples(list(leaves), ask))
    triples = list(combinations(sorted(leaves), 3))
    step = max(1, len(triples) // MOST_CHECKED)
    asked = [order for i, j, k in triples[::step] for order in ((i, j, k), (j, i, k), (k, i, j))]
    wanted = _meetings(tree)
    for (i, j, k), answer in zip(asked, ask(asked) if asked else (), strict=True):
        if answer != (wanted[frozenset((j, k))] < wanted[frozenset((i, j))]):
            raise NotRevealedError(
                f"terms {j} and {k} against {i}: the answer fits no tree of float32 additions (a wider "
                "accumulator, a compensated sum, or an order that changes from call to call)"
            )
    return tree


def _from_triples(leaves: list[int], ask: Ask) -> Tree:
    if len(leaves) < 3:
        return leaves[0] if len(leaves) == 1 else tuple(leaves)
    first, rest = leaves[0], leaves[1:]
    groups = _siblings(first, rest, ask)
    pairs = [(a, b) for a, b in combinations(range(len(groups)), 2)]
    near = ask([(groups[b][0], first, groups[a][0]) for a, b in pairs]) if pairs else []
    far = ask([(groups[a][0], first, groups[b][0]) for a, b in pairs]) if pairs else []
    # How many groups meet the first term before a group does: its level on the way to the root.
    level = [0] * len(groups)
    for (a, b), a_first, b_first in zip(pairs, near, far, strict=True):
        level[b] += int(a_first and not b_first)
        level[a] += int(b_first and not a_first)
    tree: Tree = first
    for height in sorted(set(level)):
        joined = [_from_triples(group, ask) for group, own in zip(groups, level, strict=True) if own == height]
        tree = (tree, *joined)
    return tree


def _siblings(first: int, rest: list[int], ask: Ask) -> list[list[int]]:
    """The other terms in groups that are summed within themselves before they meet the first term."""
    pairs = list(combinations(rest, 2))
    together = {
        pair for pair, answer in zip(pairs, ask([(first, *pair) for pair in pairs]), strict=True) if answer
    }
    groups: list[list[int]] = []
    for leaf in rest:
        known = next((group for group in groups if (group[0], leaf) in together), None)
        if known is None:
            groups.append([leaf])
        else:
            known.append(leaf)
    return groups


def tree_from_counts(leaves: Sequence[int], count: Count) -> Tree:
    """The tree over `leaves` from the size of the smallest subtree of every two terms (the idea of FPRev).

    Raises NotRevealedError when no tree has these sizes.
    """
    pairs = list(combinations(leaves, 2))
    sizes = dict(zip(pairs, count(pairs), strict=True)) if pairs else {}
    tree = canonical(_from_counts(list(leaves), sizes))
    wanted = _meetings(tree)
    for (i, j), size in sizes.items():
        if wanted[frozenset((i, j))] != size:
            raise NotRevealedError(f"terms {i} and {j}: a subtree of {size} terms fits no tree of additions")
    return tree


def _from_counts(leaves: list[int], sizes: dict[tuple[int, int], int]) -> Tree:
    first, rest = leaves[0], leaves[1:]
    tree: Tree = first
    for size in sorted({sizes[first, leaf] for leaf in rest}):
        level = [leaf for leaf in rest if sizes[first, leaf] == size]
        parts: list[list[int]] = []
        for leaf in level:
            known = next((part for part in parts if sizes[part[0], leaf] < size), None)
            if known is None:
                parts.append([leaf])
            else:
                known.append(leaf)
        tree = (tree, *(_from_counts(part, sizes) for part in parts))
    return tree


def leaves_of(tree: Tree) -> list[int]:
    """The terms of a tree, in its order."""
    return [tree] if isinstance(tree, int) else [leaf for part in tree for leaf in leaves_of(part)]


def canonical(tree: Tree) -> Tree:
    """The same tree with the parts of every step ordered by their smallest term."""
    if isinstance(tree, int):
        return tree
    return tuple(sorted((canonical(part) for part in tree), key=lambda part: min(leaves_of(part))))


def _meetings(tree: Tree) -> dict[frozenset[int], int]:
    """Of every two terms the number of terms of the smallest subtree with both."""
    if isinstance(tree, int):
        return {}
    found: dict[frozenset[int], int] = {}
    parts = [leaves_of(part) for part in tree]
    total = sum(map(len, parts))
    for one, other in combinations(parts, 2):
        found |= {frozenset((i, j)): total for i in one for j in other}
    for part in tree:
        found |= _meetings(part)
    return found


def subtrees(tree: Tree) -> Iterator[Tree]:
    """Every step of a tree, the ones inside before the ones around them."""
    if not isinstance(tree, int):
        for part in tree:
            yield from subtrees(part)
        yield tree


def first_difference(one: Tree, other: Tree) -> tuple[Tree, Tree] | None:
    """The smallest subtree of `one` that `other` lacks, and what `other` makes of the same first term."""
    there = set(subtrees(other))
    missing = sorted((t for t in subtrees(one) if t not in there), key=_size)
    if not missing:
        return None
    leaf = min(leaves_of(missing[0]))
    here = set(subtrees(one))
    around = [t for t in subtrees(other) if leaf in leaves_of(t) and t not in here]
    return missing[0], min(around, key=_size, default=other)


def _size(tree: Tree) -> tuple[int, int]:
    leaves = leaves_of(tree)
    return len(leaves), min(leaves)
