"""One rank's run of a plan: process groups, batches, baselines, and every case in order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from grpo_contract import GRPOVerifyError, ShardingSpec
from harness import batches
from harness.candidate import Groups, baseline_part, is_part, origin_of, run_candidate
from harness.comparison import compare
from harness.drift import Drift
from harness.environment import environment
from harness.exchange import gather_texts
from harness.fault_run import FaultRun, pick_seed
from harness.ops import LossOp, resolve
from harness.planned import BatchPlan, Plan, PlannedCase
from harness.rank_outcome import RankOutcome, case_result
from harness.rundir import ENVIRONMENT, RunDir, write_atomic
from harness.status import CaseRef, Phase, StatusWriter
from loss_ops.batch import GlobalBatch
from loss_ops.faults import FAULTS

Layout = tuple[int, int]
Quantities = dict[str, Tensor]
START_UP_SECONDS = 300


class RankRun:
    """Runs every case of `plan` that has a place for this rank; rank 0 writes the results."""

    def __init__(self, plan: Plan, rundir: RunDir, rank: int, local_rank: int, status: StatusWriter) -> None:
        self.plan, self.rundir, self.rank, self.status = plan, rundir, rank, status
        self.device = torch.device(f"cuda:{local_rank}" if plan.device == "cuda" else "cpu")
        self._groups: dict[Layout, Groups] = {}
        self._batch: tuple[tuple[str, int | None], GlobalBatch] | None = None
        self._baseline: tuple[tuple[object, ...], Quantities] | None = None

    @property
    def transport(self) -> str:
        """What carries the ranks' tensors."""
        return "nccl" if self.plan.device == "cuda" else "gloo"

    def run(self) -> None:
        """Join, run all cases, leave."""
        self._resolve_op()
        self._join()
        if self.rank == 0:
            write_atomic(self.rundir.path / ENVIRONMENT, json.dumps(environment(self.device)))
        self.status.update(phase=Phase.READY)
        for case in self.plan.cases:
            if case.skip is None:
                self._run(case)
        dist.barrier()
        dist.destroy_process_group()

    def _join(self) -> None:
        if self.plan.device == "cuda":
            torch.cuda.set_device(self.device)
        backend = "cpu:gloo,cuda:nccl" if self.plan.device == "cuda" else "gloo"
        # The launcher's deadline is the one that counts; this one only has to be later.
        dist.init_process_group(backend, timeout=timedelta(seconds=self.plan.timeout + START_UP_SECONDS))
        layouts = sorted({case.layout for case in self.plan.cases if case.skip is None})
        self._groups = {layout: self._new_groups(layout) for layout in layouts}

    def _new_groups(self, layout: Layout) -> Groups:
        tp, dp = layout
        lines_tp = [[d * tp + t for t in range(tp)] for d in range(dp)] if tp > 1 else []
        lines_dp = [[d * tp + t for d in range(dp)] for t in range(tp)] if dp > 1 else []
        return Groups(self._own_group(lines_tp), self._own_group(lines_dp))

    def _own_group(self, lines: list[list[int]]) -> dist.ProcessGroup | None:
        made = [(line, dist.new_group(line)) for line in lines]
        return next((group for line, group in made if self.rank in line), None)

    def _run(self, case: PlannedCase) -> None:
        takes_part = self.rank < case.ranks
        self.status.update(case=CaseRef(index=case.index, name=case.name), idle=not takes_part)
        seed = self._fault_seed(case) if case.fault else case.seed
        outcome = self._outcome(case, seed) if takes_part else None
        self.status.update(phase=Phase.COMPARE)
        self.status.tick()
        texts = gather_texts(outcome.model_dump_json() if outcome else "")
        if self.rank == 0:
            outcomes = [RankOutcome.model_validate_json(text) for text in texts if text]
            self._write(case, outcomes)

    def _write(self, case: PlannedCase, outcomes: list[RankOutcome]) -> None:
        fault = next((each for each in FAULTS if each.name == case.fault), None)
        result = case_result(
            case,
            outcomes,
            transport=self.transport,
            must_show=fault.quantities if fault else (),
            pattern=fault.pattern if fault else None,
        )
        self.rundir.write_case(case.index, result.model_dump_json())

    def _outcome(self, case: PlannedCase, seed: int | None) -> RankOutcome:
        started = time.perf_counter()
        contract = self.plan.batches[case.batch].contract
        sharding = ShardingSpec.even(*case.layout, rank=self.rank, contract=contract)
        outcome = RankOutcome(tp_rank=sharding.tp_rank, dp_rank=sharding.dp_rank, seed=seed)
        try:
            found = self._compare_case(case, seed, sharding)
        except GRPOVerifyError as error:
            return outcome.model_copy(update={"error": (error.code, str(error))})
        if found is None:
            reason = "no seed was found on which this fault would show"
            return outcome.model_copy(update={"inconclusive": reason})
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
            return self._compare(expected, got, sharding)
        op = self._op
        expected = self._baseline_of(case, seed, op, batch)
        runs = [run_candidate(op, batch, sharding, groups, self.status) for _ in range(case.repeat)]
        repeats = [self._repeat(runs[0], again, sharding, run) for run, again in enumerate(runs[1:], 2)]
        return (*self._compare(expected, runs[0], sharding), *(drift for found in repeats for drift in found))

    def _compare(self, expected: Quantities, got: Quantities, sharding: ShardingSpec) -> tuple[Drift, ...]:
        return tuple(
            compare(
                name,
                baseline_part(name, expected[name], value, sharding),
                value,
                origin_of(name, value, sharding),
                sharded=is_part(name, value, sharding),
            )
            for name, value in got.items()
            if name in expected
        )

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


def build_batch(planned: BatchPlan, seed: int | None) -> GlobalBatch:
    """The tensors of a planned batch on the CPU; a capture has no seed."""
    if planned.spec is not None:
        return batches.built_in(planned.spec, seed or 0, planned.contract)
    assert planned.path is not None
    return batches.captured(planned.path, planned.contract)
