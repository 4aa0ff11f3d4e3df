"""A summation tree over gradients, fixed by the number of leaves alone, that ranks can build piece by piece.

Leaf i is the gradient of block i of the batch. Node (level, i) is node (level - 1, 2 i) + node (level - 1,
2 i + 1), element by element; where the second does not exist the first goes up unchanged. Neighbours meet first,
so whoever holds neighbouring leaves can add them up without the others, and the bits of the root do not depend
on who held what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

Key = tuple[int, int]
"""(level, index) of a node."""


def num_levels(leaves: int) -> int:
    """Level of the root."""
    return max(0, leaves - 1).bit_length()


def width_at(level: int, leaves: int) -> int:
    """Number of nodes at `level`."""
    return -(-leaves // (1 << level))


class TreeSum:
    """Adds nodes as they come and keeps only sums whose sibling is missing: log2(leaves) of them at most
    while leaves come in order. It owns what it is given and adds in place.
    """

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self.held: dict[Key, Tensor] = {}

    def add_leaf(self, index: int, gradient: Tensor) -> None:
        """Add the gradient of block `index`."""
        self.add((0, index), gradient)

    def add(self, key: Key, value: Tensor) -> None:
        """Add a node, and every sum above it that is now complete."""
        level, index = key
        while level < num_levels(self.leaves):
            sibling = index ^ 1
            if sibling < width_at(level, self.leaves):
                other = self.held.pop((level, sibling), None)
                if other is None:
                    break
                value = other.add_(value)  # addition is commutative: who came first changes no bit
            level, index = level + 1, index // 2
        self.held[level, index] = value

    def root(self) -> Tensor:
        """The sum over all leaves. Raises ValueError while leaves are missing."""
        top = (num_levels(self.leaves), 0)
        if list(self.held) != [top]:
            raise ValueError(
                f"a tree over {self.leaves} leaves: expected all of them, got nodes {sorted(self.held)}"
            )
        return self.held[top]


def nodes_of(start: int, stop: int, leaves: int) -> list[Key]:
    """The nodes that whoever holds leaves [start, stop) is left with, in leaf order."""
    held: set[Key] = set()
    for leaf in range(start, stop):
        level, index = 0, leaf
        while level < num_levels(leaves):
            sibling = index ^ 1
            if sibling < width_at(level, leaves):
                if (level, sibling) not in held:
                    break
                held.remove((level, sibling))
            level, index = level + 1, index // 2
        held.add((level, index))
    return sorted(held, key=lambda key: key[1] << key[0])


def root_of(nodes: Iterable[tuple[Key, Tensor]], leaves: int) -> Tensor:
    """The root from nodes that cover all leaves; the tensors are added in place."""
    tree = TreeSum(leaves)
    for key, value in nodes:
        tree.add(key, value)
    return tree.root()


def in_leaf_order(held: Mapping[Key, Tensor]) -> list[Tensor]:
    """The held nodes in the order of `nodes_of`."""
    return [held[key] for key in sorted(held, key=lambda key: key[1] << key[0])]


def tree_sum(leaves_NX: Tensor) -> Tensor:
    """The root over dim 0 of a tensor that holds all leaves: the same bits as `TreeSum`, a level at a time."""
    level = leaves_NX
    while level.shape[0] > 1:
        even = level.shape[0] // 2 * 2
        paired = level[0:even:2] + level[1:even:2]
        level = paired if even == level.shape[0] else torch.cat((paired, level[even:]))
    return level[0]
