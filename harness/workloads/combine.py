"""Combining parameter gradients over DP ranks: in the fixed order of the tree, or by all_reduce."""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from grpo_contract import even_bounds
from harness.workloads.gradient_tree import TreeSum, in_leaf_order, nodes_of, root_of
from harness.workloads.ranks import Exchange, Place, TrainingProgram
from loss_ops.gather import AllReduce

BUCKET = 1 << 24
"""Elements combined at a time: bounds the memory of what travels."""


class Combine(StrEnum):
    """How the gradients of all blocks become one."""

    FIXED_ORDER = "fixed_order"
    """the tree over blocks in batch order: the same bits at every DP degree"""
    ALL_REDUCE = "all_reduce"
    """each rank adds its blocks in order, the collective adds the ranks in an order of its own"""


class GradientSum:
    """One rank's gradients of a pass: [P] leaves come in block order, `combined` gives the batch's [P] gradient.

    `block_bounds[r]` are the blocks of DP rank r, contiguous from 0.
    """

    def __init__(self, combine: Combine, block_bounds: tuple[tuple[int, int], ...], place: Place) -> None:
        self.combine, self.bounds, self.place = combine, block_bounds, place
        self._tree = TreeSum(block_bounds[-1][1])
        self._total: Tensor | None = None

    def add_leaf(self, block: int, gradient: Tensor) -> None:
        """Add the gradient of a block; the tensor is taken over."""
        if self.combine is Combine.FIXED_ORDER:
            self._tree.add_leaf(block, gradient)
        else:
            self._total = gradient if self._total is None else self._total.add_(gradient)

    def combined(self) -> TrainingProgram[Tensor]:
        """The sum over all blocks of all ranks, on every rank."""
        if self.combine is Combine.ALL_REDUCE:
            assert self._total is not None
            (total,) = yield AllReduce("dp", self._total, "gradients, all_reduce")
            return total
        nodes = in_leaf_order(self._tree.held)
        if self.place.degree == 1:
            return self._tree.root()
        parts = []
        for start in range(0, nodes[0].numel(), BUCKET):
            parts.append((yield from self._bucket([node[start : start + BUCKET] for node in nodes])))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _bucket(self, nodes: list[Tensor]) -> TrainingProgram[Tensor]:
        """Each rank adds up its share of the elements from all ranks' nodes, then the shares are gathered."""
        shares = even_bounds(nodes[0].numel(), self.place.degree)
        sizes = [stop - start for start, stop in shares]
        keys = [nodes_of(start, stop, self.bounds[-1][1]) for start, stop in self.bounds]
        mine = sizes[self.place.rank]
        # A single node lies in the order of its shares already.
        pieces = [node[start:stop] for start, stop in shares for node in nodes]
        sent = nodes[0] if len(nodes) == 1 else torch.cat(pieces)
        received = yield Exchange(
            sent, tuple(len(nodes) * size for size in sizes), tuple(len(each) * mine for each in keys)
        )
        split = [
            (key, piece)
            for rank_keys, pieces in zip(keys, received, strict=True)
            for key, piece in zip(rank_keys, pieces.view(len(rank_keys), mine).unbind(), strict=True)
        ]
        root = root_of(split, self.bounds[-1][1])
        shares_of_all = yield Exchange(
            root.repeat(self.place.degree), (mine,) * self.place.degree, tuple(sizes), "gradient shares"
        )
        return torch.cat(shares_of_all)
