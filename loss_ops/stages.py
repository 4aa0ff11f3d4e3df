"""The stages of the loss, each replaceable: a backend swaps kernels, a planted fault swaps one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grpo_contract import ShardingSpec
from loss_ops import advantages, gradient, logprob, sequence_totals, tile_stats
from loss_ops.gather import Program
from loss_ops.inputs import LossInputs, Slots
from loss_ops.logprob import Logprobs
from loss_ops.scalars import Scalars, scalars
from loss_ops.sequence_totals import SequenceTotals
from loss_ops.tile_stats import TileStats
from loss_ops.token_terms import TokenTerms, token_terms
from loss_ops.vocab_shard import VocabShard


def merge(
    max_KN: Tensor, sum_KN: Tensor, selected_PN: Tensor, action_ids_N: Tensor, shard: VocabShard
) -> Program[Logprobs]:
    """`logprob.merge` as a stage of the program: no further request."""
    return logprob.merge(max_KN, sum_KN, selected_PN, action_ids_N, shard)
    yield


def all_advantages(rewards_B: Tensor, inputs: LossInputs) -> Tensor:
    """[B] advantages of the whole batch, replicated on every rank."""
    contract = inputs.contract
    return advantages.group_advantages(rewards_B, contract.geometry.group_boundaries, contract.objective.advantage)


def own_advantages(advantages_B: Tensor, inputs: LossInputs) -> Tensor:
    """[S] the part that belongs to this rank's sequences."""
    return advantages_B[slice(*inputs.sharding.sequence_shard)]


def token_sum(terms_ST: Tensor, active_ST: Tensor, _inputs: LossInputs) -> Tensor:
    """[S] sums over slots; nothing of the layout may enter."""
    return sequence_totals.token_sum(terms_ST, active_ST)


def logits_gradient(
    logits_NV: Tensor, slots: Slots, coefficient_N: Tensor, softmax: Logprobs, _sharding: ShardingSpec
) -> Tensor:
    """`gradient.logits_gradient`; nothing of the layout may enter."""
    return gradient.logits_gradient(logits_NV, slots, coefficient_N, softmax)


@dataclass(frozen=True)
class Stages:
    """Tile stats -> merge -> terms -> sequence totals -> scalars -> gradient.

    The first and the last touch the logits and are what a kernel backend replaces. `program`, when given, runs
    them all its own way (arguments of `staged_program`) and must go stage by stage where another was replaced.
    """

    tile_stats: Callable[[Tensor, Tensor, Tensor, VocabShard, float], TileStats] = tile_stats.tile_stats
    merge: Callable[[Tensor, Tensor, Tensor, Tensor, VocabShard], Program[Logprobs]] = merge
    advantages: Callable[[Tensor, LossInputs], Tensor] = all_advantages
    own_advantages: Callable[[Tensor, LossInputs], Tensor] = own_advantages
    token_terms: Callable[..., TokenTerms] = token_terms
    token_sum: Callable[[Tensor, Tensor, LossInputs], Tensor] = token_sum
    assemble: Callable[[list[Tensor]], SequenceTotals] = sequence_totals.unpack
    scalars: Callable[[SequenceTotals, SequenceTotals, LossInputs], Program[Scalars]] = scalars
    logits_gradient: Callable[[Tensor, Slots, Tensor, Logprobs, ShardingSpec], Tensor] = logits_gradient
    program: Callable[..., Program[Any]] | None = None


NATIVE_STAGES = Stages()
