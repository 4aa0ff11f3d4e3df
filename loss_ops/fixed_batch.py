"""Parts of a batch (micro-batches): the whole batch's rewards and token counts are fixed before any part runs.

A part is computed as if it were the shard of one DP rank of a finer layout. The fixed batch answers that rank's
gathers in the other ranks' place, so a part runs the very program, stages and kernels of a whole batch, and each
of its sequences gets the same bits however the rank's sequences are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, InputError, Problem, ShardingSpec
from loss_ops.checked_program import Checks, agreement, check_active
from loss_ops.gather import Gather, Gathered, Program, Request, ResultT
from loss_ops.loss_call import LossCall
from loss_ops.result import GRPOLossResult

ACTIVE_COLUMN = 2
"""Where `sequence_totals.pack` puts a sequence's active tokens."""


@dataclass(frozen=True)
class Part:
    """The result of global sequences [start, stop).

    `result.loss` is what they add to the loss of the batch, and carries their gradient, normalized by the whole
    batch: gradients of parts are summed. Its per-sequence vectors hold their rows; other rows are 0.
    """

    start: int
    stop: int
    result: GRPOLossResult


@dataclass(frozen=True)
class FixedBatch:
    """One rank's tokens, and of the whole batch what every part needs: rewards, and tokens per sequence.

    `call` is the rank's own call; its logits are a stand-in without memory. `rewards` holds one [B] float32
    tensor, `active_tokens_B` int64 counts. Advantages are computed once, from all rewards. It belongs to one op.
    """

    call: LossCall
    rewards: Gathered
    active_tokens_B: Tensor

    @property
    def contract(self) -> GRPOLossContract:
        """The contract of the whole batch."""
        return self.call.contract

    @property
    def rows(self) -> tuple[int, int]:
        """The rank's own global sequences."""
        return self.call.sharding.sequence_shard

    def apply(
        self,
        op: Any,
        policy_local_logits: Tensor,
        *,
        start: int,
        ref_local_logits: Tensor | None = None,
        **options: Any,
    ) -> Part:
        """The sharded loss op on sequences [start, start + S) of this rank; logits are [S, T, V owned columns].

        `options` go to `op.apply` (tp_group, grad_scale, validate, and what else the op knows). No rank is asked
        over DP. Raises InputError when the sequences are not this rank's.
        """
        part = self.part_call(policy_local_logits, start, ref_local_logits)
        result = op.apply(
            policy_local_logits,
            part.action_ids,
            part.old_logps,
            part.rewards,
            contract=part.contract,
            sharding=part.sharding,
            completion_mask=part.completion_mask,
            ref_local_logits=ref_local_logits,
            fixed=self,
            **options,
        )
        return Part(*part.sharding.sequence_shard, result)

    def part_call(self, logits: Tensor, start: int, reference: Tensor | None) -> LossCall:
        """The call of sequences [start, start + S), at its place in the finer layout."""
        own, length = self.call, self.contract.geometry.padded_seq_len
        stop = start + logits[..., 0].numel() // length
        first, last = self.rows
        if not first <= start < stop <= last:
            expected = f"sequences of this rank, [{first}, {last})"
            raise InputError(Problem("input.part", "start", expected, f"[{start}, {stop})"))
        inputs, rows = own.inputs(), slice(start - first, stop - first)
        place = part_sharding(own.sharding, start, stop)
        return LossCall(
            logits,
            inputs.action_ids_ST[rows],
            inputs.old_logps_ST[rows],
            inputs.rewards_S[rows],
            own.contract,
            place,
            inputs.active_ST[rows],
            reference,
        )

    def answering(self, program: Program[ResultT], place: ShardingSpec) -> Program[ResultT]:
        """`program` of the part at `place`, its gathers over DP answered here; those over TP are passed on."""
        answer: Gathered | None = None
        while True:
            try:
                request = next(program) if answer is None else program.send(answer)
            except StopIteration as stop:
                result: ResultT = stop.value
                return result
            answer = self._answer(request, place) if request.axis == "dp" else (yield request)

    def _answer(self, request: Request, place: ShardingSpec) -> Gathered:
        if isinstance(request, Gather) and request.purpose == "rewards":
            return self.rewards
        if isinstance(request, Gather) and request.purpose == "token counts":
            return Gathered([self.active_tokens_B])
        if isinstance(request, Gather) and request.purpose == "sequence totals":
            totals = request.tensor.new_zeros(len(self.active_tokens_B), *request.tensor.shape[1:])
            totals[:, ACTIVE_COLUMN] = self.active_tokens_B
            totals[slice(*place.sequence_shard)] = request.tensor
            return Gathered([totals])
        raise RuntimeError(f"a part of a fixed batch cannot answer the request {request.purpose!r}")


@lru_cache(maxsize=4096)
def part_sharding(sharding: ShardingSpec, start: int, stop: int) -> ShardingSpec:
    """The place of a part: its sequences as a shard of their own, the vocabulary as `sharding` has it."""
    end = sharding.sequence_shard_bounds[-1][1]
    bounds = tuple(each for each in ((0, start), (start, stop), (stop, end)) if each[0] < each[1])
    changes = {"dp_rank": bounds.index((start, stop)), "dp_degree": len(bounds), "sequence_shard_bounds": bounds}
    return ShardingSpec(**{**sharding.model_dump(), **changes})


def rank_call(
    action_ids: Tensor,
    old_logps: Tensor,
    rewards: Tensor,
    *,
    contract: GRPOLossContract,
    sharding: ShardingSpec,
    completion_mask: Tensor | None = None,
    has_reference: bool = True,
    group_sizes: tuple[int | None, int | None] = (None, None),
) -> LossCall:
    """A rank's call before there are logits; shapes as in `DistributedGRPOLossOp.apply`."""
    dtype = getattr(torch, contract.logprob.dtype.value)
    shape = (sharding.num_local_sequences, contract.geometry.padded_seq_len, sharding.num_local_columns)
    device = getattr(action_ids, "device", None)  # what is no tensor is refused on every rank, by `fix_batch`
    stand_in = torch.zeros((), dtype=dtype, device=device).expand(shape)
    return LossCall(
        stand_in, action_ids, old_logps, rewards, contract, sharding, completion_mask,
        stand_in if has_reference else None, group_sizes,
    )  # fmt: skip


def fix_batch(call: LossCall, checks: Checks | None = None) -> Program[FixedBatch]:
    """Validate and compare all ranks' calls (`rank_call`), then gather rewards and token counts over DP.

    Raises ContractError, InputError or PreflightError, the same on every rank.
    """
    wanted = checks or Checks()
    yield from agreement(call, wanted)
    inputs = call.inputs()
    sizes = inputs.sequence_sizes
    rewards = yield Gather("dp", inputs.rewards_S.float(), sizes, "rewards")
    counts = yield Gather("dp", inputs.active_ST.sum(dim=1), sizes, "token counts")
    fixed = FixedBatch(call, Gathered([torch.cat(rewards)]), torch.cat(counts))
    if wanted.validate == "full":
        check_active(fixed.active_tokens_B)
    return fixed
