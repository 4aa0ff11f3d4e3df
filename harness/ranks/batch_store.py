"""The batch a rank works on, and what ops give for it at 1x1: kept until another batch is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from grpo_contract import GRPOVerifyError, ShardingSpec
from harness.own_ops.ops import LossOp, is_ours
from harness.planning.planned import BatchPlan
from harness.ranks import batches
from harness.ranks.candidate import NO_GROUPS, Groups, run_candidate
from harness.ranks.sensitivity import disturb
from loss_ops.batch import GlobalBatch

Quantities = dict[str, Tensor]
DIGEST_CHARACTERS = 32


class BatchStore:
    """The latest batch of `planned` on `device`, with the baselines of that batch by op."""

    def __init__(self, planned: Mapping[str, BatchPlan], device: torch.device) -> None:
        self._planned, self._device = planned, device
        self.alone = NO_GROUPS
        """Of a call at 1x1."""
        self._held: tuple[tuple[str, int | None], GlobalBatch] | None = None
        self._baselines: list[tuple[LossOp, Quantities]] = []
        self._digests: tuple[Quantities, dict[str, str]] | None = None

    def batch(self, name: str, seed: int | None) -> GlobalBatch:
        """The batch `name` drawn with `seed`; a capture has no seed."""
        key = (name, seed)
        if self._held is None or self._held[0] != key:
            self._baselines, self._digests = [], None
            self._held = (key, build_batch(self._planned[name], seed).to(self._device))
        return self._held[1]

    def baseline(self, op: LossOp, batch: GlobalBatch) -> Quantities:
        """What `op` gives for `batch` on one rank alone. Raises what the op raises."""
        if self._held is None or batch is not self._held[1]:
            return self._run_alone(op, batch)
        for known, quantities in self._baselines:
            if known is op:
                return quantities
        found = self._run_alone(op, batch)
        if not is_ours(op):
            disturb(partial(self._run_alone, op), batch)
        self._baselines.append((op, found))
        return found

    def power(self, op: LossOp, batch: GlobalBatch) -> dict[str, float]:
        """The chance that another summation order would show in `op`'s numbers on `batch`."""
        from harness.ranks.power import measure_power, power_of_foreign

        if is_ours(op):
            return measure_power(batch)
        try:
            baseline = self.baseline(op, batch)
        except GRPOVerifyError:  # the case itself says so
            return {}
        return power_of_foreign(batch, baseline, partial(self._run_alone, op))

    def _run_alone(self, op: LossOp, batch: GlobalBatch) -> Quantities:
        return run_alone(op, batch, self.alone)

    def digests(self, op: LossOp, batch: GlobalBatch) -> dict[str, str]:
        """What stands for the bits of `op`'s baseline in a report."""
        quantities = self.baseline(op, batch)
        if self._digests is None or self._digests[0] is not quantities:
            self._digests = (quantities, digests_of(quantities))
        return self._digests[1]


def digests_of(quantities: Quantities) -> dict[str, str]:
    """For each quantity the digest of its bits that a snapshot would keep, shortened."""
    from harness.comparing.digests import digest_of

    return {name: digest_of(name, value).digest[:DIGEST_CHARACTERS] for name, value in quantities.items()}


def run_alone(op: LossOp, batch: GlobalBatch, groups: Groups = NO_GROUPS) -> Quantities:
    """The quantities of `op` at 1x1."""
    return run_candidate(op, batch, ShardingSpec.even(1, 1, contract=batch.contract), groups)


def build_batch(planned: BatchPlan, seed: int | None) -> GlobalBatch:
    """The tensors of a planned batch on the CPU."""
    if planned.spec is not None:
        return batches.built_in(planned.spec, seed or 0, planned.contract)
    assert planned.path is not None
    return batches.captured(planned.path, planned.contract)
