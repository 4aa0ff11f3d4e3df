"""A planted fault as a case: which seed shows it, its own baseline, and its run on real ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from grpo_contract import ShardingSpec
from harness.launching.status import StatusWriter
from harness.own_ops.ops import LossOp
from harness.planning.planned import PlannedCase
from harness.ranks.batch_store import BatchStore, run_alone
from harness.ranks.candidate import Groups, run_candidate
from loss_ops.batch import GlobalBatch
from loss_ops.controls import contract_on_rank, faulty_op
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.faults import FAULTS
from loss_ops.virtual_layout import run_layout
from loss_ops.virtual_ranks import NeedsRealRanks

SEEDS_TRIED = 24
Quantities = dict[str, torch.Tensor]


class FaultRun:
    """One planted fault on top of the good op; `store` holds the batches and the good op's baselines."""

    def __init__(
        self, name: str, good: LossOp, store: BatchStore, watch: Callable[[str], None] | None = None
    ) -> None:
        assert isinstance(good, DistributedGRPOLossOp)
        self.fault = next(fault for fault in FAULTS if fault.name == name)
        self.good = good
        self.op = faulty_op(name, good)
        self.op.on_collective = watch
        self._store = store

    def baseline(self, batch: GlobalBatch) -> Quantities:
        """At 1x1: of the faulty op itself, whose fault lies in the layout, or of the good op."""
        if self.fault.kind == "layout":
            return run_alone(self.op, batch)
        return self._store.baseline(self.good, batch)

    def candidate(
        self, batch: GlobalBatch, sharding: ShardingSpec, groups: Groups, status: StatusWriter
    ) -> Quantities:
        """The faulty op at its layout."""
        contract = contract_on_rank(self.fault.name, batch.contract, sharding)
        return run_candidate(self.op, batch, sharding, groups, status, contract)

    def pick_seed(self, case: PlannedCase) -> int | None:
        """The first seed on which virtual ranks show the fault in a quantity that must show it, or None.

        A fault that only reorders a sum leaves some batches unmoved; a batch that it moves makes a miss count.
        """
        assert case.seed is not None
        if self.fault.kind in ("disagreement", "timing"):
            return case.seed
        for seed in range(case.seed, case.seed + SEEDS_TRIED):
            try:
                if self._shows(self._store.batch(case.batch, seed), case.layout):
                    return seed
            except NeedsRealRanks:
                return case.seed
        return None

    def _shows(self, batch: GlobalBatch, layout: tuple[int, int]) -> bool:
        expected = self.baseline(batch)
        outcome = run_layout(batch, *layout, op=self.op)
        return any(
            not torch.equal(expected[name].view(torch.int32), outcome.quantities(place)[name].view(torch.int32))
            for place in outcome.results
            for name in self.fault.quantities
        )
