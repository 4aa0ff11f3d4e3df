"""Power: the measured chance that another summation order would show on a batch.

The good op is run at 1x1 again and again with every sum in another random order: slots of a sequence, vocabulary
tiles, sequences of the batch, members of a group. The share of orders that change a quantity's bits is the chance
that a comparison of that quantity would have seen a changed order. A quantity with power 0 proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from grpo_contract import ShardingSpec
from harness.comparing.ulp import raw_bits
from harness.ranks.sensitivity import unmoved
from loss_ops.advantages import group_advantages
from loss_ops.batch import GlobalBatch
from loss_ops.gather import Program
from loss_ops.inputs import LossInputs, Slots
from loss_ops.logprob import Logprobs, TileTerms
from loss_ops.loss_program import LossState, gradient_of, loss_program
from loss_ops.quantities import quantities
from loss_ops.real_ranks import RealRanks
from loss_ops.result import GRPOLossResult
from loss_ops.scalars import Scalars, scalars
from loss_ops.sequence_totals import SequenceTotals
from loss_ops.stages import NATIVE_STAGES, Stages
from loss_ops.tile_stats import TileStats
from loss_ops.vocab_shard import VocabShard

TRIALS = 8
LARGE = 1 << 14
GRADIENT_ROWS = 64
GRADIENT_COLUMNS = 1 << 15


def power_of_foreign(
    batch: GlobalBatch, baseline: Mapping[str, Tensor], run: Callable[[GlobalBatch], Mapping[str, Tensor]]
) -> dict[str, float]:
    """As `measure_power`, in the dtypes of a foreign op's `baseline`, and 0 where its numbers can show nothing.

    `run` gives the op's quantities on one rank. Where it raises on moved inputs, that is left out.
    """
    power = measure_power(batch, dtypes={name: value.dtype for name, value in baseline.items()})
    try:
        still = unmoved(run, batch, baseline)
    except Exception:  # an op may check its inputs; what it does on its own batch decides
        return power
    return {name: 0.0 if name in still else chance for name, chance in power.items()}


def measure_power(batch: GlobalBatch, dtypes: Mapping[str, torch.dtype] | None = None) -> dict[str, float]:
    """For each floating quantity, the share of random orders that moved its bits on `batch`.

    With `dtypes`, the bits of the quantity in the dtype in which an op returns it.
    8 orders, or 4 on a large batch, where one costs a tenth of a second.
    The gradient is looked at in the first active slots and columns only. Nothing is drawn globally.
    """
    trials = TRIALS if batch.action_ids.numel() <= LARGE else TRIALS // 2
    draw = torch.Generator().manual_seed(0)
    inputs = batch.shard(ShardingSpec.even(1, 1, contract=batch.contract)).inputs()
    base, terms = _remembering(NATIVE_STAGES, {}), dict[int, TileTerms]()
    good = _quantities(inputs, base)
    moved = dict.fromkeys((name for name, value in good.items() if value.is_floating_point()), 0)
    for _ in range(trials):
        other = _quantities(inputs, _shuffled(base, draw, terms))
        for name in moved:
            kept = (dtypes or {}).get(name, good[name].dtype)
            moved[name] += not torch.equal(raw_bits(good[name].to(kept)), raw_bits(other[name].to(kept)))
    return {name: count / trials for name, count in moved.items()}


def _quantities(inputs: LossInputs, stages: Stages) -> dict[str, Tensor]:
    with torch.no_grad():
        state = RealRanks().run(loss_program(inputs, stages))
        gradient = gradient_of(*_first_active(inputs, state), stages)
    return quantities(GRPOLossResult.of(state, state.loss, {}), gradient)


def _first_active(inputs: LossInputs, state: LossState) -> tuple[LossInputs, LossState]:
    """The same at the first active slots and columns."""
    whole = inputs.slots
    rows = whole.active_N.nonzero()[:GRADIENT_ROWS, 0]
    shard = replace(whole.shard, stop=min(whole.shard.stop, whole.shard.start + GRADIENT_COLUMNS))
    slots = Slots(whole.action_ids_N[rows], whole.active_N[rows], shard, whole.temperature)
    softmax = Logprobs(*(each[rows] for each in vars(state.softmax_N).values()))
    part = replace(inputs, policy_logits_NV=inputs.policy_logits_NV[rows, :GRADIENT_COLUMNS])
    part.__dict__["slots"] = slots
    return part, replace(state, coefficient_N=state.coefficient_N[rows], softmax_N=softmax)


def _remembering(base: Stages, held: dict[int, TileStats]) -> Stages:
    """Tile statistics are the costly part and the same in every trial: computed once a tensor."""

    def tile_stats(logits_NV: Tensor, *arguments: Any) -> TileStats:
        key = logits_NV.data_ptr()
        if key not in held:
            held[key] = base.tile_stats(logits_NV, *arguments)
        return held[key]

    return replace(base, tile_stats=tile_stats)


def _shuffled(base: Stages, draw: torch.Generator, terms: dict[int, TileTerms]) -> Stages:
    """Stages in a random order; `terms` keeps what the merge of the n-th model of a trial adds, equal in all."""
    models = count()

    def order(count: int, like: Tensor) -> Tensor:
        return torch.randperm(count, generator=draw).to(like.device)

    def token_sum(terms_ST: Tensor, active_ST: Tensor, inputs: LossInputs) -> Tensor:
        slots = order(terms_ST.shape[1], terms_ST)
        return base.token_sum(terms_ST[:, slots], active_ST[:, slots], inputs)

    def merge(
        max_KN: Tensor, sum_KN: Tensor, selected_PN: Tensor, ids_N: Tensor, shard: VocabShard
    ) -> Program[Logprobs]:
        model = next(models)
        if model not in terms:
            terms[model] = TileTerms.of(max_KN, sum_KN, selected_PN, ids_N, shard)
        return terms[model].added(order(len(max_KN), max_KN))
        yield

    def shuffled_scalars(
        totals_B: SequenceTotals, local_S: SequenceTotals, inputs: LossInputs
    ) -> Program[Scalars]:
        sequences = order(len(totals_B.policy), totals_B.policy)
        moved = SequenceTotals(*(each[sequences] for each in vars(totals_B).values()))
        found = yield from scalars(moved, local_S, inputs)
        weight_B = torch.empty_like(found.weight_B).index_copy_(0, sequences, found.weight_B)
        return replace(found, weight_B=weight_B)

    def advantages(rewards_B: Tensor, inputs: LossInputs) -> Tensor:
        geometry, spec = inputs.contract.geometry, inputs.contract.objective.advantage
        members = torch.cat([start + order(stop - start, rewards_B) for start, stop in geometry.groups])
        found = group_advantages(rewards_B[members], geometry.group_boundaries, spec)
        return torch.empty_like(found).index_copy_(0, members, found)

    return replace(base, token_sum=token_sum, merge=merge, scalars=shuffled_scalars, advantages=advantages)
