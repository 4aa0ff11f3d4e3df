"""One rank of a comparison of training runs: rank 0 trains alone, then the ranks of a case train together."""

from __future__ import annotations

import time

import torch.distributed as dist
from pydantic import BaseModel

from grpo_contract import GRPOVerifyError
from harness.files.rundir import RunDir
from harness.launching.status import CaseRef, Phase, StatusWriter
from harness.ranks.candidate import Groups
from harness.ranks.exchange import gather_texts
from harness.ranks.rank_groups import device_of, session
from harness.workloads.ranks import Place, RealDriver
from harness.workloads.train_plan import TrainCase, TrainPlan
from harness.workloads.train_result import train_result
from harness.workloads.train_settings import TrainSettings
from harness.workloads.train_workloads import recipe_of, workload_of
from harness.workloads.training import OnUpdate, Update, Workload, train
from harness.workloads.trajectory import (
    Recorded,
    TrajectoryComparison,
    digests_of,
    parameter_digest,
    parameters_state,
    state_of,
)


class RankTrajectory(BaseModel):
    """What a rank says after a case: the digest of its parameters after each update, or the error it met."""

    digests: tuple[str, ...] = ()
    error: str | None = None


class TrainRank:
    """Runs every case of `plan` that has a place for this rank; rank 0 compares and writes the results."""

    def __init__(self, plan: TrainPlan, rundir: RunDir, rank: int, local_rank: int, status: StatusWriter) -> None:
        self.plan, self.rundir, self.rank, self.status = plan, rundir, rank, status
        self.device = device_of(plan, local_rank)
        self._baselines: dict[str, Recorded] = {}
        self._groups: dict[tuple[int, int], Groups] = {}

    def run(self) -> None:
        """Join, run all cases, leave."""
        todo = [case for case in self.plan.cases if case.skip is None]
        layouts = [(1, case.degree) for case in todo]
        with session(self.plan, self.device, self.rundir, layouts, self.status) as self._groups:
            for case in todo:
                self._run(case)

    def _run(self, case: TrainCase) -> None:
        takes_part = self.rank < case.degree
        self.status.update(case=CaseRef(index=case.index, name=case.name), idle=not takes_part)
        started = time.perf_counter()
        refused = self._prepare(case.settings)
        comparison = (
            TrajectoryComparison(self._baselines[_key(case.settings)]) if self._compares(refused) else None
        )
        own = self._trajectory(case, comparison) if takes_part and not refused else RankTrajectory(error=refused)
        self.status.update(phase=Phase.COMPARE)
        texts = gather_texts(own.model_dump_json() if takes_part else "")
        if self.rank == 0:
            ranks = [RankTrajectory.model_validate_json(text) for text in texts if text]
            digests, error = (
                [each.digests for each in ranks],
                next((each.error for each in ranks if each.error), None),
            )
            seconds = time.perf_counter() - started
            result = train_result(case, comparison, digests, error, transport=self.plan.transport, seconds=seconds)
            self.rundir.write_case(case.index, result.model_dump_json())

    def _compares(self, refused: str | None) -> bool:
        return self.rank == 0 and not refused

    def _prepare(self, settings: TrainSettings) -> str | None:
        """Rank 0 trains alone unless it has already; all ranks learn whether that was refused."""
        told = ""
        if self.rank == 0 and _key(settings) not in self._baselines:
            try:
                self._baselines[_key(settings)] = self._alone(settings)
            except GRPOVerifyError as error:
                told = str(error)
        self.status.tick()
        return gather_texts(told)[0] or None

    def _alone(self, settings: TrainSettings) -> Recorded:
        recorded = Recorded(self.rundir.path / "states" / str(len(self._baselines)))
        # Whatever the run under test does, the baseline combines in the fixed order.
        reference = settings.model_copy(update={"combine": "fixed_order"})
        workload = workload_of(reference, self.device)
        recorded.start = digests_of(parameters_state(workload.parameters()))

        def on_update(update: Update) -> None:
            self.status.tick()
            recorded.record(state_of(update, workload.parameters()))

        self._train(workload, reference, None, Place(), None, on_update)
        return recorded

    def _trajectory(self, case: TrainCase, comparison: TrajectoryComparison | None) -> RankTrajectory:
        workload = workload_of(case.settings, self.device)
        digests: list[str] = []

        def on_update(update: Update) -> None:
            self.status.tick()
            state = state_of(update, workload.parameters())
            if comparison is not None:
                comparison.see(state)
            digests.append(parameter_digest(digests_of(state)))

        place = Place(self.rank, case.degree)
        try:
            self._train(workload, case.settings, case.mistake, place, self._groups[1, case.degree].dp, on_update)
        except GRPOVerifyError as error:
            return RankTrajectory(digests=tuple(digests), error=str(error))
        return RankTrajectory(digests=tuple(digests))

    def _train(
        self,
        workload: Workload,
        settings: TrainSettings,
        mistake: str | None,
        place: Place,
        group: dist.ProcessGroup | None,
        on_update: OnUpdate,
    ) -> None:
        recipe = recipe_of(settings, mistake, self.status.tick)
        program = train(workload, range(1, settings.num_updates + 1), place, recipe, on_update)
        RealDriver(group, self.status.watch).run(program)


def _key(settings: TrainSettings) -> str:
    """Runs with the same key have the same baseline: how gradients travel does not enter it."""
    return settings.model_dump_json(
        exclude={"combine", "dp", "out", "format", "quiet", "color", "timeout", "controls"}
    )
