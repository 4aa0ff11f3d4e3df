"""Planted faults: what each entry of `loss_ops.faults` changes in the good op. One fault, one stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, InputError, Problem, ShardingSpec
from loss_ops import advantages, logprob
from loss_ops.arrival_order import sum_in_arrival_order
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.faults import FAULTS
from loss_ops.gather import AllReduce, Program
from loss_ops.inputs import LossInputs, Slots
from loss_ops.logprob import Logprobs
from loss_ops.many_rank_controls import MANY_RANK_STAGES
from loss_ops.normalizer import normalization
from loss_ops.scalars import Scalars
from loss_ops.sequence_totals import SequenceTotals, token_sum, unpack
from loss_ops.stages import Stages
from loss_ops.tile_stats import owns
from loss_ops.trees import fold_sum
from loss_ops.vocab_shard import VocabShard


def faulty_op(name: str, base: DistributedGRPOLossOp | None = None) -> DistributedGRPOLossOp:
    """The sharded op with one planted fault on top of `base` (native); a disagreement leaves the op good."""
    if name not in {fault.name for fault in FAULTS}:
        expected = f"one of {', '.join(fault.name for fault in FAULTS)}"
        raise InputError(Problem("input.fault", "fault", expected, repr(name)))
    good = base or DistributedGRPOLossOp()
    planted = FAULTY_STAGES[name](good.stages) if name in FAULTY_STAGES else good.stages
    return DistributedGRPOLossOp(
        planted, backend=f"{good.backend}+{name}", launch=good.launch, on_collective=good.on_collective
    )


def contract_on_rank(name: str, contract: GRPOLossContract, sharding: ShardingSpec) -> GRPOLossContract:
    """The contract that a rank holds under the fault: another one only for a disagreement, on its ranks."""
    odd = {
        "beta_differs_on_one_tp_rank": 0 < sharding.tp_rank == sharding.tp_degree - 1,
        "beta_differs_on_one_dp_rank": 0 < sharding.dp_rank == sharding.dp_degree - 1,
    }
    if not odd.get(name):
        return contract
    objective = contract.objective.model_copy(update={"beta": contract.objective.beta + 0.01})
    return contract.model_copy(update={"objective": objective})


def _masked(terms_ST: Tensor, active_ST: Tensor) -> Tensor:
    return torch.where(active_ST, terms_ST, 0.0) + 0.0


def _regrouped_per_rank(terms_ST: Tensor, active_ST: Tensor, inputs: LossInputs) -> Tensor:
    blocks = _masked(terms_ST, active_ST).tensor_split(inputs.sharding.dp_degree, dim=1)
    return fold_sum(torch.stack([fold_sum(block, 1) for block in blocks]), 0)


def _by_local_row_count(terms_ST: Tensor, active_ST: Tensor, inputs: LossInputs) -> Tensor:
    rows = inputs.sharding.num_local_sequences
    if rows == inputs.contract.geometry.num_sequences:
        return token_sum(terms_ST, active_ST)
    blocks = _masked(terms_ST, active_ST).tensor_split(rows, dim=1)
    return fold_sum(torch.stack([fold_sum(block, 1) for block in blocks]), 0)


def _bf16_sum(terms_ST: Tensor, active_ST: Tensor, _inputs: LossInputs) -> Tensor:
    return fold_sum(_masked(terms_ST, active_ST).bfloat16(), 1).float()


def _in_arrival_order(terms_ST: Tensor, active_ST: Tensor, _inputs: LossInputs) -> Tensor:
    return sum_in_arrival_order(_masked(terms_ST, active_ST))


def _all_reduced_totals(totals_B: SequenceTotals, local_S: SequenceTotals, inputs: LossInputs) -> Program[Scalars]:
    norm = normalization(totals_B.active_tokens, inputs.contract)
    mine = torch.stack([fold_sum(local_S.policy, 0), fold_sum(local_S.kl, 0)])
    (summed,) = yield AllReduce("dp", mine)
    policy_loss, kl = (summed / norm.divisor).unbind()
    return Scalars(policy_loss, kl, norm.weight_B)


def _rank_local_normalizer(
    totals_B: SequenceTotals, local_S: SequenceTotals, inputs: LossInputs
) -> Program[Scalars]:
    norm = normalization(local_S.active_tokens, inputs.contract)
    weight_B = norm.weight_B[:1].expand_as(totals_B.policy)
    return Scalars(norm.scalar(local_S.policy), norm.scalar(local_S.kl), weight_B)
    yield


def _all_reduced_tiles(
    max_KN: Tensor, sum_KN: Tensor, selected_PN: Tensor, action_ids_N: Tensor, shard: VocabShard
) -> Program[Logprobs]:
    good = logprob.merge(max_KN, sum_KN, selected_PN, action_ids_N, shard)
    first = sum(shard.tiles[: shard.tp_rank])
    own = slice(first, first + shard.num_tiles)
    mine = fold_sum(sum_KN[own] * (max_KN[own] - good.max_N).exp(), 0)
    (summed,) = yield AllReduce("tp", mine)
    log_sum = summed.log()
    selected = selected_PN.gather(0, logprob.owner_rank(action_ids_N, shard)[None])[0]
    return Logprobs((selected - good.max_N) - log_sum, good.max_N, log_sum)


def _doubled_tiles(
    max_KN: Tensor, sum_KN: Tensor, selected_PN: Tensor, action_ids_N: Tensor, shard: VocabShard
) -> Program[Logprobs]:
    if len(shard.tiles) > 1 and max_KN.shape[0] % 2 == 0:
        pairs_max, pairs_sum = max_KN.unflatten(0, (-1, 2)), sum_KN.unflatten(0, (-1, 2))
        max_KN = pairs_max.amax(1)
        sum_KN = (pairs_sum * (pairs_max - max_KN[:, None]).exp()).sum(1)
    return logprob.merge(max_KN, sum_KN, selected_PN, action_ids_N, shard)
    yield


def _rank_local_advantages(rewards_B: Tensor, inputs: LossInputs) -> Tensor:
    geometry, spec = inputs.contract.geometry, inputs.contract.objective.advantage
    edges = {start for start, _ in inputs.sharding.sequence_shard_bounds}
    boundaries = tuple(sorted(edges | set(geometry.group_boundaries)))
    return advantages.group_advantages(rewards_B, boundaries, spec)


def _off_by_one_rank(advantages_B: Tensor, inputs: LossInputs) -> Tensor:
    start, stop = inputs.sharding.sequence_shard
    shifted = advantages_B.roll(start - stop)
    return shifted[start:stop] if inputs.sharding.dp_degree > 1 else advantages_B[start:stop]


def _swapped(gathered: list[Tensor]) -> SequenceTotals:
    return unpack(gathered[::-1])


def _zero_off_owner(base: Stages) -> Stages:
    def gradient(
        logits_NV: Tensor, slots: Slots, coefficient_N: Tensor, softmax: Logprobs, sharding: ShardingSpec
    ) -> Tensor:
        good = base.logits_gradient(logits_NV, slots, coefficient_N, softmax, sharding)
        return torch.where(owns(slots.action_ids_N, slots.shard)[:, None], good, 0.0)

    return replace(base, logits_gradient=gradient)


def _scaled_by_dp(base: Stages) -> Stages:
    def gradient(
        logits_NV: Tensor, slots: Slots, coefficient_N: Tensor, softmax: Logprobs, sharding: ShardingSpec
    ) -> Tensor:
        return base.logits_gradient(logits_NV, slots, coefficient_N * sharding.dp_degree, softmax, sharding)

    return replace(base, logits_gradient=gradient)


FAULTY_STAGES: dict[str, Callable[[Stages], Stages]] = {
    "token_sum_regrouped_per_rank": lambda base: replace(base, token_sum=_regrouped_per_rank),
    "row_sum_by_local_row_count": lambda base: replace(base, token_sum=_by_local_row_count),
    "sequence_totals_all_reduced": lambda base: replace(base, scalars=_all_reduced_totals),
    "tile_sums_all_reduced": lambda base: replace(base, merge=_all_reduced_tiles),
    "tiles_doubled_under_tp": lambda base: replace(base, merge=_doubled_tiles),
    "rank_local_normalizer": lambda base: replace(base, scalars=_rank_local_normalizer),
    "rank_local_advantages": lambda base: replace(base, advantages=_rank_local_advantages),
    "sequences_swapped_at_assembly": lambda base: replace(base, assemble=_swapped),
    "advantages_off_by_one_rank": lambda base: replace(base, own_advantages=_off_by_one_rank),
    "bf16_token_sum": lambda base: replace(base, token_sum=_bf16_sum),
    "gradient_zero_off_owner": _zero_off_owner,
    "gradient_scaled_by_dp": _scaled_by_dp,
    "token_sum_in_arrival_order": lambda base: replace(base, token_sum=_in_arrival_order),
    **MANY_RANK_STAGES,
}
