"""One rank's run of a plan: process groups, batches, baselines, and every case in order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

import torch.distributed as dist
from torch import Tensor

from grpo_contract import GRPOVerifyError, InputError, Problem, ShardingSpec
from harness import batches
from harness.candidate import Groups, is_part, origin_of, run_candidate
from harness.comparison import compare
from harness.diagnosis.frame import Frame
from harness.diagnosis.stage_run import have_drifted, with_rank_stages, with_virtual_stages
from harness.drift import Drift
from harness.environment import check_environment, environment
from harness.exchange import gather_texts
from harness.fault_run import FaultRun, pick_seed
from harness.meeting import collective_timeout
from harness.ops import LossOp, resolve
from harness.planned import BatchPlan, Plan, PlannedCase
from harness.power import measure_power
from harness.rank_comparison import compare_rank
from harness.rank_groups import device_of, join, layout_groups
from harness.rank_outcome import RankOutcome, case_result
from harness.rundir import ENVIRONMENT, RunDir, write_atomic
from harness.status import CaseRef, Phase, StatusWriter
from harness.stress import other_timing
from harness.virtual_run import run_virtual_case
from loss_ops.batch import GlobalBatch
from loss_ops.controls import contract_on_rank
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.faults import FAULTS

Layout = tuple[int, int]
Quantities = dict[str, Tensor]
NO_SEED = "no seed was found on which this fault would show"


class RankRun:
    """Runs every case of `plan` that has a place for this rank; rank 0 writes the results."""

    def __init__(self, plan: Plan, rundir: RunDir, rank: int, local_rank: int, status: StatusWriter) -> None:
        self.plan, self.rundir, self.rank, self.status = plan, rundir, rank, status
        self.device = device_of(plan, local_rank)
        self._groups: dict[Layout, Groups] = {}
        self._batch: tuple[tuple[str, int | None], GlobalBatch] | None = None
        self._baseline: tuple[tuple[object, ...], Quantities] | None = None
        self._power: tuple[tuple[str, int | None], dict[str, float]] | None = None

    def run(self) -> None:
        """Join, run all cases, leave."""
        self._resolve_op()
        check_environment(self.rundir, environment(self.device))
        self.status.tick()
        join(self.plan, self.device, self.rundir)
        if self.plan.transport != "virtual":
            layouts = [case.layout for case in self.plan.cases if case.skip is None]
            self._groups = layout_groups(layouts, self.rank, collective_timeout(self.plan.timeout))
        if self.rank == 0:
            write_atomic(self.rundir.path / ENVIRONMENT, json.dumps(environment(self.device)))
        self.status.update(phase=Phase.READY)
        for case in self.plan.cases:
            if case.skip is None:
                self._run(case)
        dist.barrier()
        dist.destroy_process_group()

    def _run(self, case: PlannedCase) -> None:
        if self.plan.transport == "virtual":
            self._run_virtual(case)
            return
        takes_part = self.rank < case.ranks
        self.status.update(case=CaseRef(index=case.index, name=case.name), idle=not takes_part)
        seed = self._fault_seed(case) if case.fault else case.seed
        outcome = self._outcome(case, seed) if takes_part else None
        self.status.update(phase=Phase.COMPARE)
        self.status.tick()
        outcomes = _gathered(outcome)
        if case.fault is None and have_drifted(outcomes):
            outcomes = _gathered(self._with_stages(case, outcome))
        if self.rank == 0:
            self._write(case, outcomes)

    def _with_stages(self, case: PlannedCase, outcome: RankOutcome | None) -> RankOutcome | None:
        """Run a drifting case once more, on all its ranks in step, to look between its stages."""
        if outcome is None:
            return None
        batch = self._batch_of(self.plan.batches[case.batch], case.seed)
        sharding = ShardingSpec.even(*case.layout, rank=self.rank, contract=batch.contract)
        try:
            return with_rank_stages(outcome, self._op, batch, sharding, self._groups[case.layout])
        except GRPOVerifyError as error:  # the drift stands, whatever comes of explaining it
            note = f"could not be run again to look between its stages: {error}"
            return outcome.model_copy(update={"notes": (*outcome.notes, note)})

    def _write(self, case: PlannedCase, outcomes: list[RankOutcome]) -> None:
        fault = next((each for each in FAULTS if each.name == case.fault), None)
        result = case_result(
            case,
            outcomes,
            transport=self.plan.transport,
            power=self._power_of(case) if case.expect == "match" and not outcomes[0].error else {},
            must_show=fault.quantities if fault else (),
            pattern=fault.pattern_at(case.layout) if fault else None,
            must_say=fault.must_say if fault else None,
        )
        self.rundir.write_case(case.index, result.model_dump_json())

    def _run_virtual(self, case: PlannedCase) -> None:
        self.status.update(case=CaseRef(index=case.index, name=case.name), phase=Phase.FORWARD)
        started = time.perf_counter()
        seed = self._fault_seed(case) if case.fault else case.seed
        try:
            outcomes = self._virtual_outcomes(case, seed)
        except GRPOVerifyError as error:
            outcomes = [RankOutcome(tp_rank=0, dp_rank=0, error=(error.code, str(error)))]
        spent = {"seconds": time.perf_counter() - started, "seed": seed}
        self._write(case, [each.model_copy(update=spent) for each in outcomes])

    def _virtual_outcomes(self, case: PlannedCase, seed: int | None) -> list[RankOutcome]:
        planned = self.plan.batches[case.batch]
        if case.fault and seed is None and planned.source == "builtin":
            return [RankOutcome(tp_rank=0, dp_rank=0, inconclusive=NO_SEED)]
        batch = self._batch_of(planned, seed)
        if case.fault:
            fault = FaultRun(case.fault, self._good_op(batch))
            contracts = partial(contract_on_rank, fault.fault.name, batch.contract)
            return run_virtual_case(fault.op, batch, case.layout, fault.baseline(batch), contracts)
        expected = self._baseline_of(case, seed, self._op, batch)
        outcomes = run_virtual_case(self._op, batch, case.layout, expected, repeat=case.repeat)
        assert isinstance(self._op, DistributedGRPOLossOp)
        return with_virtual_stages(outcomes, self._op, batch, case.layout)

    def _power_of(self, case: PlannedCase) -> dict[str, float]:
        """Measured once a batch and seed."""
        key = (case.batch, case.seed)
        if self._power is None or self._power[0] != key:
            batch = self._batch_of(self.plan.batches[case.batch], case.seed)
            self._power = (key, measure_power(batch))
        return self._power[1]

    def _outcome(self, case: PlannedCase, seed: int | None) -> RankOutcome:
        started = time.perf_counter()
        contract = self.plan.batches[case.batch].contract
        sharding = ShardingSpec.even(*case.layout, rank=self.rank, contract=contract)
        outcome = RankOutcome(tp_rank=sharding.tp_rank, dp_rank=sharding.dp_rank, seed=seed)
        try:
            found = self._compare_case(case, seed, sharding)
        except GRPOVerifyError as error:
            self.status.refuse(str(error))
            return outcome.model_copy(update={"error": (error.code, str(error))})
        if found is None:
            return outcome.model_copy(update={"inconclusive": NO_SEED})
        return outcome.model_copy(update={"drifts": found, "seconds": time.perf_counter() - started})

    def _compare_case(
        self, case: PlannedCase, seed: int | None, sharding: ShardingSpec
    ) -> tuple[Drift, ...] | None:
        if case.fault and seed is None and self.plan.batches[case.batch].source == "builtin":
            return None
        batch = self._batch_of(self.plan.batches[case.batch], seed)
        groups = self._groups[case.layout]
        if case.fault:
            fault = FaultRun(case.fault, self._good_op(batch), self._watch)
            expected = fault.baseline(batch)
            got = fault.candidate(batch, sharding, groups, self.status)
            return self._compare(expected, got, sharding, batch)
        expected = self._baseline_of(case, seed, self._op, batch)
        runs = []
        for number in range(case.repeat):
            with other_timing(number if self.plan.stress else 0, self.rank, self.device):
                runs.append(run_candidate(self._op, batch, sharding, groups, self.status))
        repeats = [self._repeat(runs[0], again, sharding, run) for run, again in enumerate(runs[1:], 2)]
        compared = self._compare(expected, runs[0], sharding, batch)
        return (*compared, *(drift for found in repeats for drift in found))

    def _compare(
        self, expected: Quantities, got: Quantities, sharding: ShardingSpec, batch: GlobalBatch
    ) -> tuple[Drift, ...]:
        if expected.keys() != got.keys():
            there, here = ", ".join(expected), ", ".join(got)
            raise InputError(Problem("input.result", "the op's result", f"{there}, as at 1x1", here))
        return compare_rank(expected, got, sharding, Frame.of(batch, expected))

    def _repeat(self, first: Quantities, again: Quantities, sharding: ShardingSpec, run: int) -> list[Drift]:
        """Quantities in which a later run differs from the first; nothing when they repeat."""
        found = [
            compare(f"{name} (run {run})", first[name], again[name], origin_of(name, again[name], sharding),
                    sharded=is_part(name, again[name], sharding))
            for name in first
        ]  # fmt: skip
        return [drift for drift in found if drift.mismatched]

    def _batch_of(self, planned: BatchPlan, seed: int | None) -> GlobalBatch:
        key = (planned.name, seed)
        if self._batch is None or self._batch[0] != key:
            self._batch = (key, build_batch(planned, seed).to(self.device))
        return self._batch[1]

    def _baseline_of(self, case: PlannedCase, seed: int | None, op: LossOp, batch: GlobalBatch) -> Quantities:
        key = (case.batch, seed, case.op)
        if self._baseline is None or self._baseline[0] != key:
            alone = ShardingSpec.even(1, 1, contract=batch.contract)
            self._baseline = (key, run_candidate(op, batch, alone, Groups()))
        return self._baseline[1]

    def _resolve_op(self) -> None:
        """Find the op before ranks join: one that does not exist refuses the run, on every rank alike."""
        contract = next(iter(self.plan.batches.values())).contract
        self._op = resolve(self.plan.op, self.plan.backend, contract, self.plan.device)
        if hasattr(self._op, "on_collective"):
            self._op.on_collective = self._watch

    def _good_op(self, batch: GlobalBatch) -> LossOp:
        own = self.plan.op if ":" not in self.plan.op else "grpo_loss"
        return resolve(own, self.plan.backend, batch.contract, self.plan.device)

    def _watch(self, purpose: str) -> None:
        phase = Phase.PREFLIGHT if purpose == "preflight" else Phase.FORWARD
        if self.status.phase is not phase:
            self.status.update(phase=phase)
        self.status.tick()

    def _fault_seed(self, case: PlannedCase) -> int | None:
        """The seed on which the fault shows, searched by rank 0 with virtual ranks and told to all."""
        planned = self.plan.batches[case.batch]
        if case.expect == "any" or case.seed is None:
            return case.seed
        found = ""
        if self.rank == 0:
            build: Callable[[int], GlobalBatch] = lambda seed: self._batch_of(planned, seed)  # noqa: E731
            found = str(pick_seed(case, build, self._good_op(build(case.seed))))
        self.status.tick()
        answer = gather_texts(found)[0]
        return None if answer == "None" else int(answer)


def _gathered(outcome: RankOutcome | None) -> list[RankOutcome]:
    """The outcomes of all ranks that take part, on every rank."""
    texts = gather_texts(outcome.model_dump_json() if outcome else "")
    return [RankOutcome.model_validate_json(text) for text in texts if text]


def build_batch(planned: BatchPlan, seed: int | None) -> GlobalBatch:
    """The tensors of a planned batch on the CPU; a capture has no seed."""
    if planned.spec is not None:
        return batches.built_in(planned.spec, seed or 0, planned.contract)
    assert planned.path is not None
    return batches.captured(planned.path, planned.contract)
