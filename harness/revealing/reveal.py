"""`grpo-verify reveal`: the order in which an op adds, found from outside, layout by layout.

Equal trees prove equal order for all inputs of that shape. In one process, on one device: our ops run with
virtual ranks; an op with collectives of its own is asked at 1x1 only. An op that reaches its bits in several ways
is asked in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpo_contract import GRPOVerifyError, ShardingSpec
from harness.own_ops.ops import LossOp, resolve
from harness.ranks.candidate import Groups, run_candidate
from harness.revealing.probe_shape import ProbeShape, Run
from harness.revealing.probes import absorption, opposite
from harness.revealing.sum_trees import NotRevealedError, Tree, tree_from_counts, tree_from_triples
from harness.revealing.token_probes import UNIT, sequence_kl_rows, token_kl_rows, token_policy_rows
from harness.revealing.vocabulary_probes import vocabulary_by_gradient, vocabulary_by_kl
from loss_ops.batch import GlobalBatch
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.virtual_layout import run_layout
from loss_ops.virtual_ranks import NeedsRealRanks

Layout = tuple[int, int]


@dataclass(frozen=True)
class Revealed:
    """One reduction: the tree at each layout and path, or why it cannot be revealed there.

    A path other than the usual one is named after its layout ("1x1 gradient=forward"). `native` is the tree of the
    native op at 1x1, where another backend was asked: for information, since backends are not promised equal bits.
    """

    name: str
    about: str
    trees: dict[str, Tree] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    native: Tree | None = None

    @property
    def agrees(self) -> bool:
        """Whether all revealed layouts and paths add in one order."""
        return len(set(self.trees.values())) <= 1

    @property
    def layouts(self) -> set[str]:
        """The layouts whose tree is known."""
        return {label.partition(" ")[0] for label in self.trees}


def op_to_ask(name: str, backend: str | None, shape: ProbeShape, device: str) -> LossOp:
    """The op of this name for batches of this shape on this device. Raises InputError where there is none."""
    return resolve(name, backend, shape.contract(1), device)


def reveal(
    op: LossOp | str,
    layouts: Sequence[Layout],
    shape: ProbeShape | None = None,
    *,
    device: str = "cpu",
    sums: Sequence[str] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> list[Revealed]:
    """The trees of the token, the sequence and the vocabulary reduction of `op`, or of these `sums`, by layout.

    `tick` is called whenever the op has answered.
    Token terms are probed twice: positive policy terms by absorption, and KL terms of both signs by opposites.
    """
    probe = shape or ProbeShape()
    found = op_to_ask(op, None, probe, device) if isinstance(op, str) else op
    return [
        _revealed(name, about, find, found, layouts, probe, torch.device(device), tick)
        for name, about, find in (
            ("token sum, policy", f"{probe.tokens} tokens of a sequence, by absorption", _token_policy),
            ("token sum, kl", f"{probe.tokens} tokens of a sequence, by opposites", _token_kl),
            ("sequence sum", f"{probe.sequences} sequences, by opposites", _sequences),
            ("vocabulary sum", f"{probe.columns} columns in {probe.tiles} tiles, by absorption", _vocabulary),
        )
        if sums is None or name in sums
    ]


def _token_policy(run: Run, shape: ProbeShape) -> Tree:
    return tree_from_triples(range(shape.tokens), absorption(token_policy_rows(run, shape), shape.tokens))


def _token_kl(run: Run, shape: ProbeShape) -> Tree:
    return tree_from_counts(range(shape.tokens), opposite(token_kl_rows(run, shape), shape.tokens, UNIT))


def _sequences(run: Run, shape: ProbeShape) -> Tree:
    return tree_from_counts(range(shape.sequences), opposite(sequence_kl_rows(run, shape), shape.sequences, UNIT))


def _vocabulary(run: Run, shape: ProbeShape) -> Tree:
    """Through the gradient, all slots at once; where that does not resolve the sum, through its logarithm."""
    try:
        ask = absorption(vocabulary_by_gradient(run, shape), shape.columns)
    except NotRevealedError as by_gradient:
        try:
            ask = absorption(vocabulary_by_kl(run, shape), shape.columns)
        except NotRevealedError as by_kl:
            raise NotRevealedError(f"by the gradient: {by_gradient}; by the KL: {by_kl}") from None
    return tree_from_triples(range(shape.columns), ask)


def _revealed(
    name: str,
    about: str,
    find: Callable[[Run, ProbeShape], Tree],
    op: LossOp,
    layouts: Sequence[Layout],
    shape: ProbeShape,
    device: torch.device,
    tick: Callable[[], None],
) -> Revealed:
    trees: dict[str, Tree] = {}
    refusals: dict[str, str] = {}
    for label, used, layout in _paths(op, layouts):
        try:
            trees[label] = find(_runner(used, layout, device, tick), shape)
        except (NotRevealedError, NeedsRealRanks, GRPOVerifyError) as error:
            refusals[label] = str(error)
    return Revealed(name, about, trees, refusals, _native(op, find, shape, device) if trees else None)


def _paths(op: LossOp, layouts: Sequence[Layout]) -> Iterator[tuple[str, LossOp, Layout]]:
    """Each layout, and at TP degree 1, where kernels may be joined, each other way to the same bits."""
    for layout in layouts:
        label = f"{layout[0]}x{layout[1]}"
        yield label, op, layout
        others = op.other_paths if isinstance(op, DistributedGRPOLossOp) and layout[0] == 1 else {}
        yield from ((f"{label} {path}", other, layout) for path, other in others.items())


def _native(
    op: LossOp, find: Callable[[Run, ProbeShape], Tree], shape: ProbeShape, device: torch.device
) -> Tree | None:
    if not isinstance(op, DistributedGRPOLossOp) or not op.launch:
        return None  # a foreign op, or the native one, which launches no kernels of its own
    try:
        return find(_runner(DistributedGRPOLossOp(), (1, 1), device), shape)
    except (NotRevealedError, GRPOVerifyError):
        return None


def _runner(op: LossOp, layout: Layout, device: torch.device, tick: Callable[[], None] = lambda: None) -> Run:
    if not isinstance(op, DistributedGRPOLossOp) and layout != (1, 1):
        raise NotRevealedError("the op brings its own collectives, which need real ranks; 1x1 can be asked here")

    def run(probe: GlobalBatch) -> dict[str, Tensor]:
        batch = probe.to(device)
        if isinstance(op, DistributedGRPOLossOp):
            found = run_layout(batch, *layout, op=op).quantities()
        else:
            found = run_candidate(op, batch, ShardingSpec.even(1, 1, contract=batch.contract), Groups())
        tick()
        return {name: value.cpu() for name, value in found.items()}

    return run


def reveal_status(found: Sequence[Revealed]) -> int:
    """0 all orders agree, 1 some differ, 3 where no two layouts could be compared."""
    if any(not each.agrees for each in found):
        return 1
    proven = any(len(each.layouts) > 1 for each in found)
    return 0 if proven else 3
