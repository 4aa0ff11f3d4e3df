"""Faults made for the diagnosis: each changes the native stages so that one pattern must be found."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_contract import AdvantageKind
from harness.comparing.frame import Frame
from harness.planning.planned import PlannedCase
from harness.ranks.case_result import case_result
from harness.ranks.layout_runner import runner_of
from loss_ops import advantages, logprob
from loss_ops.batch import GlobalBatch
from loss_ops.controls import FAULTY_STAGES
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.inputs import LossInputs
from loss_ops.logprob import Logprobs
from loss_ops.sequence_totals import SequenceTotals, token_sum, unpack
from loss_ops.stages import NATIVE_STAGES, Stages
from reports import CaseResult
from support.batches import drawn, small_spec

Plant = Callable[[Stages, GlobalBatch], Stages]


def gradient_fault(change: Callable[[Tensor, LossInputs | object, object], Tensor]) -> Plant:
    """A fault of the gradient: `change(gradient_NV, slots, sharding)` on layouts other than 1x1."""

    def plant(base: Stages, _batch: GlobalBatch) -> Stages:
        def gradient(logits, slots, coefficient, softmax, sharding):
            good = base.logits_gradient(logits, slots, coefficient, softmax, sharding)
            alone = sharding.tp_degree * sharding.dp_degree == 1
            return good if alone else change(good, slots, sharding)

        return replace(base, logits_gradient=gradient)

    return plant


def factor(value: float) -> Plant:
    return gradient_fault(lambda good, _slots, _place: good * value)


def of_its_own(good: Tensor, _slots, place) -> Tensor:
    return good * (1.25 + place.dp_rank)


def on_last_rank(good: Tensor, _slots, place) -> Tensor:
    last = place.tp_rank == place.tp_degree - 1 and place.dp_rank == place.dp_degree - 1
    noise = torch.rand(good.shape, generator=torch.Generator().manual_seed(3))
    return good * (0.5 + noise) if last else good


def on_masked_slots(good: Tensor, slots, _place) -> Tensor:
    return torch.where(slots.active_N[:, None], good, 0.25)


def on_one_sequence(base: Stages, batch: GlobalBatch) -> Stages:
    longest = int(batch.completion_mask.sum(1).argmax())

    def change(good: Tensor, _slots, place) -> Tensor:
        start, stop = place.sequence_shard
        if not start <= longest < stop:
            return good
        rows = good.view(stop - start, -1, good.shape[1]).clone()
        noise = torch.rand(rows[0].shape, generator=torch.Generator().manual_seed(5))
        rows[longest - start] *= 0.5 + noise
        return rows.view(good.shape)

    return gradient_fault(change)(base, batch)


def with_nan(good: Tensor, slots, place) -> Tensor:
    broken = good.clone()
    broken[int(slots.active_N.nonzero()[0]), 0] = torch.nan
    return broken if place.dp_rank == place.dp_degree - 1 else good


def zero_off_owner(base: Stages, _batch: GlobalBatch) -> Stages:
    return FAULTY_STAGES["gradient_zero_off_owner"](base)


def at_the_bound(base: Stages, batch: GlobalBatch) -> Stages:
    near_BT = Frame(batch).at_boundary(0, batch.rewards.shape[0])

    def change(good: Tensor, _slots, place) -> Tensor:
        near = near_BT[slice(*place.sequence_shard)].flatten()
        return torch.where(near[:, None], good * 0.5 + 1.0, good)

    return gradient_fault(change)(base, batch)


def log_tp(base: Stages, _batch: GlobalBatch) -> Stages:
    def merge(max_KN, sum_KN, selected_PN, action_ids_N, shard):
        good = logprob.merge(max_KN, sum_KN, selected_PN, action_ids_N, shard)
        extra = torch.tensor(float(len(shard.tiles))).log()
        return Logprobs(good.logp_N - extra, good.max_N, good.log_sum_N + extra)
        yield

    return replace(base, merge=merge)


def sample_std(base: Stages, _batch: GlobalBatch) -> Stages:
    def every(rewards_B: Tensor, inputs: LossInputs) -> Tensor:
        geometry, spec = inputs.contract.geometry, inputs.contract.objective.advantage
        alone = inputs.sharding.tp_degree * inputs.sharding.dp_degree == 1
        used = spec if alone else spec.model_copy(update={"kind": AdvantageKind.MEAN_STD_SAMPLE})
        return advantages.group_advantages(rewards_B, geometry.group_boundaries, used)

    return replace(base, advantages=every)


def rank_local_advantages(base: Stages, _batch: GlobalBatch) -> Stages:
    return FAULTY_STAGES["rank_local_advantages"](base)


def swapped(base: Stages, _batch: GlobalBatch) -> Stages:
    def assemble(gathered: list[Tensor]) -> SequenceTotals:
        rows = torch.cat(list(gathered))
        if len(gathered) > 1:
            rows[[0, -1]] = rows[[-1, 0]]
        return unpack([rows])

    return replace(base, assemble=assemble)


def bfloat16_sum(base: Stages, _batch: GlobalBatch) -> Stages:
    def total(terms_ST: Tensor, active_ST: Tensor, inputs: LossInputs) -> Tensor:
        good = token_sum(terms_ST, active_ST)
        alone = inputs.sharding.tp_degree * inputs.sharding.dp_degree == 1
        return good if alone else good.bfloat16().float()

    return replace(base, token_sum=total)


def reordered(base: Stages, _batch: GlobalBatch) -> Stages:
    """Rounding and nothing else: the token sum one after the other, and two tiles merged into one."""

    def total(terms_ST: Tensor, active_ST: Tensor, inputs: LossInputs) -> Tensor:
        if inputs.sharding.tp_degree * inputs.sharding.dp_degree == 1:
            return token_sum(terms_ST, active_ST)
        summed = torch.zeros(terms_ST.shape[0])
        for column in torch.where(active_ST, terms_ST, 0.0).unbind(1):
            summed = summed + column
        return summed + 0.0

    return FAULTY_STAGES["tiles_doubled_under_tp"](replace(base, token_sum=total))


@dataclass(frozen=True)
class Planted:
    """A fault, the pattern it must be called by, and what of a layout it needs."""

    plant: Plant
    pattern: str
    tp: bool = False
    dp: bool = False


PLANTED = {
    "gradient times 2": Planted(factor(2.0), "constant factor"),
    "gradient times 1 / 3": Planted(factor(1 / 3), "constant factor"),
    "gradient times 1.001": Planted(factor(1.001), "constant factor"),
    "a factor of each rank's own": Planted(gradient_fault(of_its_own), "a factor per rank", dp=True),
    "whole vocabulary as a shard": Planted(log_tp, "constant offset", tp=True),
    "last rank's shard": Planted(gradient_fault(on_last_rank), "only some ranks", tp=True),
    "one sequence": Planted(on_one_sequence, "only some sequences"),
    "advantages over a rank's own rewards": Planted(
        rank_local_advantages, "each rank's own part of a group", dp=True
    ),
    "two sequences swapped": Planted(swapped, "sequences moved", dp=True),
    "masked slots": Planted(gradient_fault(on_masked_slots), "only masked slots"),
    "clip bound": Planted(at_the_bound, "only at the clip boundary"),
    "sample std": Planted(sample_std, "std convention"),
    "a NaN": Planted(gradient_fault(with_nan), "non-finite"),
    "zero off the owner": Planted(zero_off_owner, "zero where a value is expected", tp=True),
    "bfloat16 sums": Planted(bfloat16_sum, "lower precision"),
    "another order": Planted(reordered, "rounding only"),
}


def planted_batch(seed: int = 0, **changes) -> GlobalBatch:
    """A ragged batch with garbage in masked slots."""
    return drawn(small_spec(**changes), seed)


def bounded_batch(seed: int = 0, **changes) -> GlobalBatch:
    """The same batch, in which a few tokens have a ratio on a clip bound."""
    batch = planted_batch(seed, **changes)
    frame = Frame(batch)
    old = batch.old_logps.clone()
    slots = batch.completion_mask.nonzero()
    for index, (s, t) in enumerate(slots[:: max(1, len(slots) // 4)].tolist()):
        wanted = (1 - 0.2, 1 + 0.2)[index % 2]
        old[s, t] += float(frame._ratio(s, s + 1)[0, t].log()) - float(torch.tensor(wanted).log())
    return replace(batch, old_logps=old)


def batch_for(names: list[str], seed: int = 0, **changes) -> GlobalBatch:
    """The batch on which these faults show: with tokens on a clip bound where a fault is about them."""
    make = bounded_batch if "clip bound" in names else planted_batch
    return make(seed, **changes)


def planted_case(plants: list[Plant], batch: GlobalBatch, layout: tuple[int, int]) -> CaseResult:
    """The case of an op with these faults at a layout, against the same op at 1x1."""
    stages = NATIVE_STAGES
    for plant in plants:
        stages = plant(stages, batch)
    case = PlannedCase(index=0, name="case", op="op", layout=layout, batch="planted", seed=0, repeat=1)
    return case_result(case, runner_of(DistributedGRPOLossOp(stages), batch)(case), transport="virtual")
