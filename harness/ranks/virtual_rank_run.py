"""The run of a plan whose layouts are virtual: one process plays every rank of each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from grpo_contract import GRPOVerifyError
from harness.launching.status import CaseRef, Phase
from harness.planning.planned import PlannedCase
from harness.ranks.fault_seeds import NO_SEED, is_searched
from harness.ranks.rank_outcome import RankOutcome
from harness.ranks.rank_run import Layout, RankRun
from harness.ranks.stage_run import with_virtual_stages
from harness.ranks.virtual_run import run_virtual_case
from loss_ops.controls import contract_on_rank
from loss_ops.distributed_loss import DistributedGRPOLossOp

NOT_DRIVEN = (
    "the op is no DistributedGRPOLossOp of loss_ops: it may call torch.distributed itself, which virtual ranks"
    " cannot answer; leave --virtual away"
)


class VirtualRankRun(RankRun):
    """The only process of its run."""

    def run_case(self, case: PlannedCase) -> None:
        """Run `case` with virtual ranks and write its result."""
        self.status.update(case=CaseRef(index=case.index, name=case.name), phase=Phase.FORWARD)
        started = time.perf_counter()
        seed = self.pick_seed(case) if is_searched(case) else case.seed
        try:
            outcomes = self._virtual_outcomes(case, seed)
        except GRPOVerifyError as error:
            outcomes = [RankOutcome(tp_rank=0, dp_rank=0, error=(error.code, str(error)))]
        spent = {"seconds": time.perf_counter() - started, "seed": seed}
        power = self.power_of(case) if outcomes[0].has_numbers else {}
        self._write(case, [each.model_copy(update=spent) for each in outcomes], power)

    def _virtual_outcomes(self, case: PlannedCase, seed: int | None) -> list[RankOutcome]:
        if self.lacks_seed(case, seed):
            return [RankOutcome(tp_rank=0, dp_rank=0, inconclusive=NO_SEED)]
        if not case.fault and not isinstance(self.op, DistributedGRPOLossOp):
            return [RankOutcome(tp_rank=0, dp_rank=0, skipped=NOT_DRIVEN)]
        batch = self.store.batch(case.batch, seed)
        if case.fault:
            fault = self.fault_run(case)
            contracts = partial(contract_on_rank, fault.fault.name, batch.contract)
            return run_virtual_case(fault.op, batch, case.layout, fault.baseline(batch), contracts)
        expected = self.store.baseline(self.op, batch)
        outcomes = run_virtual_case(self.op, batch, case.layout, expected, repeat=case.repeat)
        assert isinstance(self.op, DistributedGRPOLossOp)
        return with_virtual_stages(outcomes, self.op, batch, case.layout)

    def _grouped_layouts(self, cases: Sequence[PlannedCase]) -> list[Layout]:
        """Virtual ranks need no groups."""
        return []
