"""`grpo-verify reveal`: the order in which an op adds, found from outside, layout by layout.

Equal trees prove equal order for all inputs of that shape. In this process: our ops run with virtual ranks; an
op with collectives of its own is asked at 1x1 only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from grpo_contract import GRPOVerifyError, ShardingSpec
from harness.candidate import Groups, run_candidate
from harness.op_probes import (
    UNIT,
    ProbeShape,
    Run,
    sequence_kl_rows,
    token_kl_rows,
    token_policy_rows,
    vocabulary_rows,
)
from harness.ops import LossOp, resolve
from harness.probes import absorption, opposite
from harness.sum_trees import NotRevealedError, Tree, tree_from_counts, tree_from_triples
from loss_ops.batch import GlobalBatch
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.virtual_layout import run_layout
from loss_ops.virtual_ranks import NeedsRealRanks

Layout = tuple[int, int]


@dataclass(frozen=True)
class Revealed:
    """One reduction: the tree at each layout, or why it cannot be revealed there."""

    name: str
    about: str
    trees: dict[str, Tree] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether all revealed layouts add in one order."""
        return len(set(self.trees.values())) <= 1


def reveal(
    op: LossOp | str, layouts: Sequence[Layout], shape: ProbeShape | None = None, *, backend: str | None = None
) -> list[Revealed]:
    """The trees of the token, the sequence and the vocabulary reduction of `op` at every layout.

    Token terms are probed twice: positive policy terms by absorption, and KL terms of both signs by opposites.
    """
    probe = shape or ProbeShape()
    found = resolve(op, backend, probe.contract(1), "cpu") if isinstance(op, str) else op
    return [
        _revealed(name, about, find, found, layouts, probe)
        for name, about, find in (
            ("token sum, policy", f"{probe.tokens} tokens of a sequence, by absorption", _token_policy),
            ("token sum, kl", f"{probe.tokens} tokens of a sequence, by opposites", _token_kl),
            ("sequence sum", f"{probe.sequences} sequences, by opposites", _sequences),
            ("vocabulary sum", f"{probe.columns} columns in {probe.tiles} tiles, by absorption", _vocabulary),
        )
    ]


def _token_policy(run: Run, shape: ProbeShape) -> Tree:
    return tree_from_triples(range(shape.tokens), absorption(token_policy_rows(run, shape), shape.tokens))


def _token_kl(run: Run, shape: ProbeShape) -> Tree:
    return tree_from_counts(range(shape.tokens), opposite(token_kl_rows(run, shape), shape.tokens, UNIT))


def _sequences(run: Run, shape: ProbeShape) -> Tree:
    return tree_from_counts(range(shape.sequences), opposite(sequence_kl_rows(run, shape), shape.sequences, UNIT))


def _vocabulary(run: Run, shape: ProbeShape) -> Tree:
    return tree_from_triples(range(shape.columns), absorption(vocabulary_rows(run, shape), shape.columns))


def _revealed(
    name: str,
    about: str,
    find: Callable[[Run, ProbeShape], Tree],
    op: LossOp,
    layouts: Sequence[Layout],
    shape: ProbeShape,
) -> Revealed:
    result = Revealed(name, about)
    for layout in layouts:
        label = f"{layout[0]}x{layout[1]}"
        try:
            result.trees[label] = find(_runner(op, layout), shape)
        except (NotRevealedError, NeedsRealRanks, GRPOVerifyError) as error:
            result.refusals[label] = str(error)
    return result


def _runner(op: LossOp, layout: Layout) -> Run:
    if isinstance(op, DistributedGRPOLossOp):
        return lambda batch: run_layout(batch, *layout, op=op).quantities()
    if layout != (1, 1):
        raise NotRevealedError("the op brings its own collectives, which need real ranks; 1x1 can be asked here")

    def run(batch: GlobalBatch) -> dict[str, Tensor]:
        return run_candidate(op, batch, ShardingSpec.even(1, 1, contract=batch.contract), Groups())

    return run


def reveal_status(found: Sequence[Revealed]) -> int:
    """0 all orders agree, 1 some differ, 3 where no two layouts could be compared."""
    if any(not each.agrees for each in found):
        return 1
    proven = any(len(each.trees) > 1 for each in found)
    return 0 if proven else 3
