"""One rank's run of a plan: process groups, batches, baselines, and every case in order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from grpo_contract import GRPOVerifyError, ShardingSpec
from harness.comparing.drift import Drift
from harness.comparing.frame import Frame
from harness.files.rundir import RunDir
from harness.launching.shared_nccl import switch_on
from harness.launching.status import CaseRef, Phase, StatusWriter
from harness.own_ops.ops import OWN, LossOp, is_of_our_class, is_ours, launch_of, resolve
from harness.planning.planned import Plan, PlannedCase
from harness.provenance.imported_files import note_imported
from harness.ranks.batch_store import BatchStore
from harness.ranks.candidate import NO_GROUPS, Groups, run_candidate
from harness.ranks.environment import check_environment, environment
from harness.ranks.fault_run import FaultRun
from harness.ranks.fault_seeds import NO_SEED, agreed_seeds, is_searched
from harness.ranks.layout_world import LayoutWorlds
from harness.ranks.meeting import collective_timeout
from harness.ranks.rank_comparison import compare_rank, compare_runs
from harness.ranks.rank_groups import device_of, session
from harness.ranks.rank_outcome import RankOutcome, have_drifted
from harness.ranks.rank_report import RankReport, gather_reports
from harness.ranks.stress import other_timing
from harness.ranks.stress_control import disturbed_repeats
from loss_ops.batch import GlobalBatch
from loss_ops.faults import FAULTS

Layout = tuple[int, int]
Quantities = dict[str, Tensor]


class RankRun:
    """Runs every case of `plan` that has a place for this rank; rank 0 writes the results."""

    def __init__(self, plan: Plan, rundir: RunDir, rank: int, local_rank: int, status: StatusWriter) -> None:
        self.plan, self.rundir, self.rank, self.status = plan, rundir, rank, status
        self.device = device_of(plan, local_rank)
        switch_on(plan.transport)
        self.store = BatchStore(plan.batches, self.device)
        self._modules = 0
        self._groups: dict[Layout, Groups] = {}
        self._good: dict[str, LossOp] = {}
        self._seeds: dict[int, int | None] | None = None
        self._power: tuple[tuple[str, int | None], dict[str, float]] | None = None

    def run(self) -> None:
        """Join, run all cases, leave."""
        self._resolve_op()
        launch = launch_of(self.op)
        check_environment(self.rundir, environment(self.device, launch))
        self.status.tick()
        todo = [case for case in self.plan.cases if case.skip is None]
        layouts = self._grouped_layouts(todo)
        with session(self.plan, self.device, self.rundir, layouts, self.status, launch) as self._groups:
            self._give_worlds()
            for case in todo:
                self.run_case(case)

    def _give_worlds(self) -> None:
        """A foreign op sees the ranks of its layout and no others."""
        if is_of_our_class(self.op) or not self._groups:
            return
        worlds = LayoutWorlds(self._groups, self.rank, collective_timeout(self.plan.timeout))
        self._groups = {layout: worlds.added(layout, groups) for layout, groups in self._groups.items()}
        self.store.alone = worlds.added((1, 1), NO_GROUPS)

    def run_case(self, case: PlannedCase) -> None:
        """Run `case` on the ranks of its layout, look at it on all, write its result on rank 0."""
        seed = self._seed_of(case)
        takes_part = self.rank < case.ranks
        # The last rank idles in most layouts, and what it measures others would have to wait for.
        measures = self.rank == self.plan.ranks - 1
        ref = CaseRef(index=case.index, name=case.name)
        at_work = takes_part or measures
        self.status.update(case=ref, idle=not at_work, phase=None if at_work else Phase.COMPARE)
        outcome = self._outcome(case, seed) if takes_part else None
        if takes_part:
            self.status.update(phase=Phase.COMPARE)
        power = self.power_of(case) if measures else {}
        if measures and not takes_part:
            self.status.update(case=ref, idle=True, phase=Phase.COMPARE)
        self.status.tick()
        found = outcome is not None and outcome.has_numbers
        digests = self._digests_of(case) if found and not is_ours(self.op) else {}
        outcomes, powers = gather_reports(RankReport(outcome=outcome, power=power, baseline=digests))
        if case.fault is None and have_drifted(outcomes):
            outcomes, _ = gather_reports(RankReport(outcome=self._with_stages(case, outcome)))
        if self.rank == 0:
            self._write(case, outcomes, powers)

    def _with_stages(self, case: PlannedCase, outcome: RankOutcome | None) -> RankOutcome | None:
        """Run a drifting case once more, on all its ranks in step, to look between its stages."""
        from harness.ranks.stage_run import with_rank_stages

        if outcome is None:
            return None
        batch = self.store.batch(case.batch, case.seed)
        sharding = ShardingSpec.even(*case.layout, rank=self.rank, contract=batch.contract)
        try:
            return with_rank_stages(outcome, self.op, batch, sharding, self._groups[case.layout], self.store.alone)
        except GRPOVerifyError as error:  # the drift stands, whatever comes of explaining it
            note = f"could not be run again to look between its stages: {error}"
            return outcome.model_copy(update={"notes": (*outcome.notes, note)})

    def _write(self, case: PlannedCase, outcomes: list[RankOutcome], power: dict[str, float]) -> None:
        from harness.ranks.case_result import case_result

        fault = next((each for each in FAULTS if each.name == case.fault), None)
        result = case_result(
            case,
            outcomes,
            transport=self.plan.transport,
            power=power if outcomes[0].has_numbers else {},
            digests=self._digests_of(case) if outcomes[0].has_numbers else {},
            must_show=fault.quantities if fault else (),
            pattern=fault.pattern_at(case.layout) if fault else None,
            must_say=fault.must_say if fault else None,
        )
        self._note_imported()
        self.rundir.write_case(case.index, result.model_dump_json())

    def _digests_of(self, case: PlannedCase) -> dict[str, str]:
        if case.expect != "match":
            return {}
        return self.store.digests(self.op, self.store.batch(case.batch, case.seed))

    def power_of(self, case: PlannedCase) -> dict[str, float]:
        """The chance that another order would show in a case that has to match, measured once a batch and seed."""
        if case.expect != "match":
            return {}
        key = (case.batch, case.seed)
        if self._power is None or self._power[0] != key:
            self._power = (key, self.store.power(self.op, self.store.batch(*key)))
        return self._power[1]

    def _outcome(self, case: PlannedCase, seed: int | None) -> RankOutcome:
        started = time.perf_counter()
        contract = self.plan.batches[case.batch].contract
        sharding = ShardingSpec.even(*case.layout, rank=self.rank, contract=contract)
        outcome = RankOutcome(tp_rank=sharding.tp_rank, dp_rank=sharding.dp_rank, seed=seed)
        notes: list[str] = []
        if self.lacks_seed(case, seed):
            return outcome.model_copy(update={"inconclusive": NO_SEED})
        try:
            found = self._compare_case(case, seed, sharding, notes)
        except GRPOVerifyError as error:
            self.status.refuse(str(error))
            return outcome.model_copy(update={"error": (error.code, str(error))})
        done = {"drifts": found, "seconds": time.perf_counter() - started, "notes": tuple(notes)}
        return outcome.model_copy(update=done)

    def lacks_seed(self, case: PlannedCase, seed: int | None) -> bool:
        """Whether a fault's seed was looked for and not found."""
        return case.fault is not None and seed is None and self.plan.batches[case.batch].source == "builtin"

    def _seed_of(self, case: PlannedCase) -> int | None:
        """The seed of the case's batch; of a fault the one on which it shows."""
        if not is_searched(case):
            return case.seed
        if self._seeds is None:
            self._seeds = agreed_seeds(self.plan, self.rank, self.status, self.pick_seed)
        return self._seeds[case.index]

    def pick_seed(self, case: PlannedCase) -> int | None:
        """The first seed on which virtual ranks show the planted fault of `case`, or None."""
        return self.fault_run(case).pick_seed(case)

    def _compare_case(
        self, case: PlannedCase, seed: int | None, sharding: ShardingSpec, notes: list[str]
    ) -> tuple[Drift, ...]:
        batch = self.store.batch(case.batch, seed)
        groups = self._groups[case.layout]
        if case.fault:
            return self._compare_fault(case, batch, sharding)
        expected = self.store.baseline(self.op, batch)
        runs: list[Quantities] = []
        for number in range(case.repeat):
            with other_timing(number if self.plan.stress else 0, self.rank, self.device):
                told = None if runs else notes
                runs.append(run_candidate(self.op, batch, sharding, groups, self.status, notes=told))
        repeats = [compare_runs(runs[0], again, sharding, run) for run, again in enumerate(runs[1:], 2)]
        compared = _compared(expected, runs[0], sharding, batch)
        return (*compared, *(drift for found in repeats for drift in found))

    def _compare_fault(self, case: PlannedCase, batch: GlobalBatch, sharding: ShardingSpec) -> tuple[Drift, ...]:
        fault, groups = self.fault_run(case), self._groups[case.layout]
        if fault.fault.kind == "timing":
            again = partial(fault.candidate, batch, sharding, groups, self.status)
            return disturbed_repeats(again, case.repeat, sharding, self.rank, self.device)
        expected = fault.baseline(batch)
        got = fault.candidate(batch, sharding, groups, self.status)
        return _compared(expected, got, sharding, batch)

    def _grouped_layouts(self, cases: Sequence[PlannedCase]) -> list[Layout]:
        return [case.layout for case in cases]

    def _resolve_op(self) -> None:
        """Find the op before ranks join: one that does not exist refuses the run, on every rank alike."""
        contract = next(iter(self.plan.batches.values())).contract
        self.op = resolve(self.plan.op, self.plan.backend, contract, self.plan.device)
        if hasattr(self.op, "on_collective"):
            self.op.on_collective = self.status.watch

    def fault_run(self, case: PlannedCase) -> FaultRun:
        """The planted fault of `case` on top of our own op, whatever op is verified."""
        assert case.fault is not None
        contract = self.plan.batches[case.batch].contract
        dtype = contract.logprob.dtype.value
        if dtype not in self._good:
            own = self.plan.op if ":" not in self.plan.op else OWN
            self._good[dtype] = resolve(own, self.plan.backend, contract, self.plan.device)
        return FaultRun(case.fault, self._good[dtype], self.store, self.status.watch)

    def _note_imported(self) -> None:
        """Keep what a foreign op's results come from before they are; it may import more while it runs."""
        if ":" in self.plan.op:
            self._modules = note_imported(self.rundir, self._modules)


def _compared(
    expected: Quantities, got: Quantities, sharding: ShardingSpec, batch: GlobalBatch
) -> tuple[Drift, ...]:
    frame = Frame.of(batch, expected, sharding.sequence_shard_bounds)
    return compare_rank(expected, got, sharding, frame)
