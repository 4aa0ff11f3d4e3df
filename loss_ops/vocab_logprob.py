"""The vocab-parallel logprob op: log-probabilities of taken tokens from a sharded vocabulary."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from grpo_contract import LogprobContract, Problem, ShardingSpec, error_from
from loss_ops.inputs import Slots, flat_rows
from loss_ops.loss_program import selected_logprobs
from loss_ops.real_ranks import RealRanks, process_group
from loss_ops.stages import NATIVE_STAGES, Stages
from loss_ops.vocab_shard import VocabShard


class VocabParallelLogprobOp:
    """Selected log-probabilities with the same bits at every TP degree."""

    def __init__(self, stages: Stages = NATIVE_STAGES) -> None:
        self.stages = stages

    def apply(
        self,
        local_logits: Tensor,
        action_ids: Tensor,
        *,
        contract: LogprobContract,
        sharding: ShardingSpec,
        active: Tensor | None = None,
        tp_group: Any = None,
        temperature: float = 1.0,
    ) -> Tensor:
        """[N] float32 natural-log probabilities of `action_ids` [N] under `local_logits` [N, V owned columns].

        Differentiable in `local_logits`. Slots where `active` is False give 0 and no gradient, whatever they
        hold. Order: columns of a tile, then tiles in vocabulary order, folded by halves; one gather over TP.

        There is no preflight: each rank checks its own call, and one that raises leaves the others waiting in
        the gather. Ranks that disagree in contract, sharding, temperature, ids or `active` are not noticed.

        Raises LogprobContractError when the logits do not have the owned columns, a row for each id, or the
        contract's dtype; ShardingError when the shards do not cover the vocabulary in whole tiles; InputError
        for a group of another size or a temperature that is not positive and finite; their common base for a
        mixture. Ids are not read: an active one outside the vocabulary gives a wrong number.
        """
        group = process_group(tp_group)
        found = _own_problems(local_logits, action_ids, contract, sharding)
        found += [*sharding.vocab_problems(contract), *_option_problems(group, sharding, temperature)]
        if found:
            raise error_from(found)
        slots_active = torch.ones_like(action_ids, dtype=torch.bool) if active is None else active != 0
        shard = VocabShard.of(contract, sharding)
        slots = Slots(action_ids.flatten().long(), slots_active.flatten(), shard, temperature)
        logp: Tensor = SelectedLogprob.apply(local_logits, slots, self.stages, RealRanks(group), sharding)
        return logp


class SelectedLogprob(torch.autograd.Function):
    """Log-probability of the taken token, 0 in masked slots, with the analytic backward."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, slots: Slots, stages: Stages, ranks: RealRanks, sharding: ShardingSpec
    ) -> Tensor:
        rows = flat_rows(logits.detach())
        (softmax,) = ranks.run(selected_logprobs([rows], slots, stages))
        ctx.save_for_backward(logits)
        ctx.slots, ctx.stages, ctx.softmax, ctx.sharding = slots, stages, softmax, sharding
        return torch.where(slots.active_N, softmax.logp_N, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream_N: Tensor) -> tuple[Tensor | None, ...]:
        (logits,) = ctx.saved_tensors
        coefficient = torch.where(ctx.slots.active_N, upstream_N.float(), 0.0) / ctx.slots.temperature
        rows = flat_rows(logits.detach())
        gradient = ctx.stages.logits_gradient(rows, ctx.slots, coefficient, ctx.softmax, ctx.sharding)
        return gradient.view(logits.shape), None, None, None, None


def _own_problems(
    local_logits: Tensor, action_ids: Tensor, contract: LogprobContract, sharding: ShardingSpec
) -> list[Problem]:
    rows, columns = local_logits[..., 0].numel(), local_logits.shape[-1]
    dtype = str(local_logits.dtype).removeprefix("torch.")
    found = []
    if columns != sharding.num_local_columns:
        found.append(
            LogprobContract.problem("columns", "local_logits", f"{sharding.num_local_columns} columns", columns)
        )
    if contract.num_tokens is not None and rows != contract.num_tokens:
        found.append(LogprobContract.problem("num_tokens", "local_logits", f"{contract.num_tokens} rows", rows))
    if action_ids.numel() != rows:
        found.append(LogprobContract.problem("num_tokens", "action_ids", f"{rows} ids", action_ids.numel()))
    if dtype != contract.dtype.value:
        found.append(LogprobContract.problem("dtype", "local_logits", contract.dtype.value, dtype))
    return found


def _option_problems(group: Any, sharding: ShardingSpec, temperature: float) -> list[Problem]:
    found = []
    size, degree = None if group is None else group.size(), sharding.tp_degree
    if size != degree and (size is not None or degree > 1):
        got = "no group" if size is None else f"a group of {size}"
        found.append(Problem("input.group", "tp_group", f"a group of {degree} ranks", got))
    if not (math.isfinite(temperature) and temperature > 0):
        found.append(Problem("input.temperature", "temperature", "a finite number above 0", str(temperature)))
    return found
