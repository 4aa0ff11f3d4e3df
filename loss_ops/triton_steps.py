"""The small stages one by one, on the device functions of the program that joins them: the same bits.

They exist so that a stage can be replaced (by a planted fault, say) while all others stay what they are. Bits
equal the joined program's at temperature 1; at another, tile maxima are divided before they are subtracted.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grpo_contract import ObjectiveSpec
from loss_ops import sequence_totals
from loss_ops.gather import Program
from loss_ops.inputs import LossInputs
from loss_ops.logprob import Logprobs, owner_rank
from loss_ops.scalars import Scalars
from loss_ops.sequence_totals import SequenceTotals
from loss_ops.token_terms import TokenTerms
from loss_ops.triton_advantages import launch_advantages
from loss_ops.triton_kernel import launch
from loss_ops.triton_launch import SLOT_CHUNK, SMALL
from loss_ops.triton_math import kl_terms, log_softmax_of, merge_state, policy_terms
from loss_ops.triton_plan import plan_of
from loss_ops.triton_scalars import launch_scalars
from loss_ops.triton_workspace import Workspace
from loss_ops.vocab_shard import VocabShard

BLOCK = 256


@triton.jit(do_not_specialize=["max_ptr", "sum_ptr", "selected_ptr", "out_ptr", "tiles", "rows"])
def merge_step_kernel(max_ptr, sum_ptr, selected_ptr, out_ptr, tiles, rows, BLOCK: tl.constexpr):
    """[K, N] maxima and sums, [N] selected logits to [3, N]: logp, maximum, log of the sum."""
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = slot < rows
    stride = rows.to(tl.int64)
    row_max = tl.full([BLOCK], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK], tl.float32)
    for tile in range(0, tiles):
        at = tile * stride + slot
        largest = tl.load(max_ptr + at, mask=inside, other=0.0)
        row_max, row_sum = merge_state(
            row_max, row_sum, largest, tl.load(sum_ptr + at, mask=inside, other=1.0), 1.0
        )
    selected = tl.load(selected_ptr + slot, mask=inside, other=0.0)
    logp, scaled_max, log_sum = log_softmax_of(row_max, row_sum, selected, 1.0)
    tl.store(out_ptr + slot, logp, mask=inside)
    tl.store(out_ptr + rows + slot, scaled_max, mask=inside)
    tl.store(out_ptr + 2 * stride + slot, log_sum, mask=inside)


def merge(
    max_KN: Tensor, sum_KN: Tensor, selected_PN: Tensor, action_ids_N: Tensor, shard: VocabShard
) -> Program[Logprobs]:
    """The stage `merge`: tiles one after the other, in vocabulary order."""
    tiles, rows = max_KN.shape
    selected = selected_PN.gather(0, owner_rank(action_ids_N, shard)[None])[0]
    out = torch.empty((3, rows), dtype=torch.float32, device=max_KN.device)
    pointers = (max_KN.contiguous(), sum_KN.contiguous(), selected.contiguous(), out)
    launch(merge_step_kernel, (triton.cdiv(rows, BLOCK), 1), pointers, (tiles, rows), (BLOCK,), SMALL)
    return Logprobs(*out.unbind())
    yield  # a stage of the program, even without a request


def all_advantages(rewards_B: Tensor, inputs: LossInputs) -> Tensor:
    """The stage `advantages`."""
    out = torch.empty(rewards_B.shape, dtype=torch.float32, device=rewards_B.device)
    launch_advantages(rewards_B.float(), plan_of(inputs.contract, inputs.sharding, rewards_B.device), out)
    return out


@triton.jit(
    do_not_specialize=[
        "logp_ptr", "ref_ptr", "old_ptr", "active_ptr", "advantages_ptr", "floats_ptr", "clips_ptr", "rows",
        "length", "low", "high",
    ]
)  # fmt: skip
def terms_kernel(
    logp_ptr,
    ref_ptr,
    old_ptr,
    active_ptr,
    advantages_ptr,
    floats_ptr,
    clips_ptr,
    rows,
    length,
    low,
    high,
    BLOCK: tl.constexpr,
    REFERENCE: tl.constexpr,
    ESTIMATOR: tl.constexpr,
):
    """floats [5, N]: ratio, kl, policy, d_policy, d_kl; clips [2, N]: low, high."""
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = slot < rows
    rows = rows.to(tl.int64)
    active = inside & (tl.load(active_ptr + slot, mask=inside, other=0) != 0)
    logp = tl.load(logp_ptr + slot, mask=active, other=0.0)
    old = tl.load(old_ptr + slot, mask=active, other=0.0).to(tl.float32)
    advantage = tl.load(advantages_ptr + slot // length, mask=inside, other=0.0)
    ratio, policy, slope, clip_low, clip_high = policy_terms(logp, old, advantage, active, low, high)
    kl = tl.zeros([BLOCK], tl.float32)
    kl_slope = tl.zeros([BLOCK], tl.float32)
    if REFERENCE:
        kl, kl_slope = kl_terms(logp, tl.load(ref_ptr + slot, mask=active, other=0.0), active, ESTIMATOR)
    tl.store(floats_ptr + slot, ratio, mask=inside)
    tl.store(floats_ptr + rows + slot, kl, mask=inside)
    tl.store(floats_ptr + 2 * rows + slot, policy, mask=inside)
    tl.store(floats_ptr + 3 * rows + slot, slope, mask=inside)
    tl.store(floats_ptr + 4 * rows + slot, kl_slope, mask=inside)
    tl.store(clips_ptr + slot, clip_low, mask=inside)
    tl.store(clips_ptr + rows + slot, clip_high, mask=inside)


def token_terms(
    logp_ST: Tensor,
    ref_logp_ST: Tensor | None,
    old_logps_ST: Tensor,
    advantages_S: Tensor,
    active_ST: Tensor,
    objective: ObjectiveSpec,
) -> TokenTerms:
    """The stage `token_terms`."""
    sequences, length = active_ST.shape
    floats = torch.empty((5, sequences, length), dtype=torch.float32, device=logp_ST.device)
    clips = torch.empty((2, sequences, length), dtype=torch.bool, device=logp_ST.device)
    reference = logp_ST if ref_logp_ST is None else ref_logp_ST
    launch(
        terms_kernel,
        (triton.cdiv(sequences * length, BLOCK), 1),
        (
            logp_ST.contiguous(),
            reference.contiguous(),
            old_logps_ST.contiguous(),
            active_ST.contiguous(),
            advantages_S.contiguous(),
            floats,
            clips,
        ),
        (sequences * length, length, 1 - objective.clip_eps_low, 1 + objective.clip_eps_high),
        (BLOCK, ref_logp_ST is not None, objective.kl_estimator.value),
        SMALL,
    )
    return TokenTerms(*floats.unbind(), *clips.unbind())


@triton.jit(do_not_specialize=["terms_ptr", "active_ptr", "out_ptr", "length"])
def token_sum_kernel(terms_ptr, active_ptr, out_ptr, length, CHUNK: tl.constexpr):
    """Sum of one sequence's terms: lane j adds slots j, j + CHUNK, ..., then the lanes are summed."""
    sequence = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, CHUNK)
    total = tl.zeros([CHUNK], tl.float32)
    for first in range(0, length, CHUNK):
        inside = first + lane < length
        slot = sequence * length + first + lane
        active = inside & (tl.load(active_ptr + slot, mask=inside, other=0) != 0)
        total += tl.load(terms_ptr + slot, mask=active, other=0.0) + 0.0
    tl.store(out_ptr + sequence, tl.sum(total, 0))


def token_sum(terms_ST: Tensor, active_ST: Tensor, _inputs: LossInputs) -> Tensor:
    """The stage `token_sum`."""
    sequences, length = active_ST.shape
    out = torch.empty(sequences, dtype=torch.float32, device=terms_ST.device)
    pointers = (terms_ST.contiguous(), active_ST.contiguous(), out)
    launch(token_sum_kernel, (sequences, 1), pointers, (length,), (SLOT_CHUNK,), SMALL)
    return out


def scalars(totals_B: SequenceTotals, _local_S: SequenceTotals, inputs: LossInputs) -> Program[Scalars]:
    """The stage `scalars`, by the kernel of the joined program; what else that fills in is not used."""
    packed = sequence_totals.pack(totals_B)
    plan = plan_of(inputs.contract, inputs.sharding, packed.device)
    space = Workspace(plan.workspace_layout(1), packed.device)
    launch_scalars(packed, space.by_sequence(0), plan, space, 1.0)
    return Scalars(space.scalar(1), space.scalar(2), space.by_sequence(2))
    yield  # a stage of the program, even without a request
