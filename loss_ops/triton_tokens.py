"""Token stages in Triton: merge of gathered tiles, token terms, and the totals of each sequence."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loss_ops.inputs import LossInputs
from loss_ops.triton_advantages import advantage_of
from loss_ops.triton_kernel import launch
from loss_ops.triton_launch import MEMBER_CHUNK, SLOT_CHUNK, SMALL
from loss_ops.triton_math import is_finite, kl_terms, log_softmax_of, merge_state, policy_terms
from loss_ops.triton_plan import Plan
from loss_ops.triton_workspace import Workspace

MERGE_BLOCK = 64


@triton.jit(
    do_not_specialize=[
        "packed_ptr", "states_ptr", "actions_ptr", "max_rows_ptr", "sum_rows_ptr", "selected_rows_ptr",
        "starts_ptr", "ranks", "tiles", "rows", "inverse_temperature",
    ]
)  # fmt: skip
def merge_kernel(
    packed_ptr,
    states_ptr,
    actions_ptr,
    max_rows_ptr,
    sum_rows_ptr,
    selected_rows_ptr,
    starts_ptr,
    ranks,
    tiles,
    rows,
    inverse_temperature,
    BLOCK: tl.constexpr,
):
    """Join the tiles of a block of slots in vocabulary order: gathered [*, N] to states [models * 3, N].

    `*_rows_ptr` say in which row of the gathered tensor a model's tile or a rank's selected logit lies.
    """
    model = tl.program_id(1)
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = slot < rows
    row_max = tl.full([BLOCK], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK], tl.float32)
    for tile in range(0, tiles):
        max_row = tl.load(max_rows_ptr + model * tiles + tile)
        sum_row = tl.load(sum_rows_ptr + model * tiles + tile)
        largest = tl.load(packed_ptr + max_row * rows + slot, mask=inside, other=0.0)
        total = tl.load(packed_ptr + sum_row * rows + slot, mask=inside, other=1.0)
        row_max, row_sum = merge_state(row_max, row_sum, largest, total, inverse_temperature)
    action = tl.load(actions_ptr + slot, mask=inside, other=0)
    owner = tl.zeros([BLOCK], tl.int32)
    for rank in range(1, ranks):
        owner += (action >= tl.load(starts_ptr + rank)).to(tl.int32)
    selected_row = tl.load(selected_rows_ptr + model * ranks + owner)
    selected = tl.load(packed_ptr + selected_row * rows + slot, mask=inside, other=0.0)
    out_ptr = states_ptr + (model * 3).to(tl.int64) * rows + slot
    tl.store(out_ptr, row_max, mask=inside)
    tl.store(out_ptr + rows, row_sum, mask=inside)
    tl.store(out_ptr + 2 * rows.to(tl.int64), selected, mask=inside)


def launch_merge(gathered: list[Tensor], inputs: LossInputs, plan: Plan, space: Workspace) -> None:
    """Fill the states [models * 3, N] from what the TP ranks sent, each [models * (2 K + 1), N].

    Order: tiles in vocabulary order, one after the other. The selected logit comes from the rank that owns it.
    """
    packed = torch.cat(gathered)
    rows, models = packed.shape[1], space.layout.models
    launch(
        merge_kernel,
        (triton.cdiv(rows, MERGE_BLOCK), models),
        (
            packed,
            space.part("states"),
            inputs.action_ids_ST.contiguous(),
            *plan.merge_rows(models),
            plan.vocab_starts,
        ),
        (len(plan.shard.tiles), sum(plan.shard.tiles), rows, plan.inverse_temperature),
        (MERGE_BLOCK,),
        {**SMALL, "num_warps": 2},
    )


@triton.jit(
    do_not_specialize=[
        "states_ptr", "old_ptr", "active_ptr", "rewards_ptr", "begins_ptr", "ends_ptr", "softmax_ptr",
        "totals_ptr", "observed_ptr", "rows", "length", "first_sequence", "inverse_temperature", "low", "high",
        "beta", "eps",
    ]
)  # fmt: skip
def token_kernel(  # noqa: PLR0915
    states_ptr,
    old_ptr,
    active_ptr,
    rewards_ptr,
    begins_ptr,
    ends_ptr,
    softmax_ptr,
    totals_ptr,
    observed_ptr,
    rows,
    length,
    first_sequence,
    inverse_temperature,
    low,
    high,
    beta,
    eps,
    CHUNK: tl.constexpr,
    MEMBERS: tl.constexpr,
    KIND: tl.constexpr,
    EPS_MODE: tl.constexpr,
    REFERENCE: tl.constexpr,
    PENALIZED: tl.constexpr,
    ESTIMATOR: tl.constexpr,
    OBSERVED: tl.constexpr,
):
    """Terms and totals of one sequence: softmax [4, N] (logp, max, log_sum, slope), totals [S, 7] int64.

    Order of the two float sums: lane j adds slots j, j + CHUNK, ... one after the other, then the lanes are
    summed by one program in a fixed layout. Neither the number of sequences nor trailing masked slots enter.
    """
    sequence = tl.program_id(0).to(tl.int64)
    rows = rows.to(tl.int64)
    lane = tl.arange(0, CHUNK)
    member = first_sequence + sequence
    advantage = advantage_of(rewards_ptr, begins_ptr, ends_ptr, member, eps, MEMBERS, KIND, EPS_MODE)
    advantage = advantage + tl.zeros([CHUNK], tl.float32)
    policy_sum = tl.zeros([CHUNK], tl.float32)
    kl_sum = tl.zeros([CHUNK], tl.float32)
    count = tl.zeros([CHUNK], tl.int64)
    count_low = tl.zeros([CHUNK], tl.int64)
    count_high = tl.zeros([CHUNK], tl.int64)
    nothing = tl.full([CHUNK], 1 << 62, tl.int64)
    found = nothing
    for first in range(0, length, CHUNK):
        token = first + lane
        inside = token < length
        slot = sequence * length + token
        active = inside & (tl.load(active_ptr + slot, mask=inside, other=0) != 0)
        largest = tl.load(states_ptr + slot, mask=active, other=0.0)
        total = tl.load(states_ptr + rows + slot, mask=active, other=1.0)
        selected = tl.load(states_ptr + 2 * rows + slot, mask=active, other=0.0)
        logp, scaled_max, log_sum = log_softmax_of(largest, total, selected, inverse_temperature)
        old = tl.load(old_ptr + slot, mask=active, other=0.0).to(tl.float32)
        ratio, policy, slope, clip_low, clip_high = policy_terms(logp, old, advantage, active, low, high)
        ref_logp = logp
        kl = tl.zeros([CHUNK], tl.float32)
        if REFERENCE:
            largest = tl.load(states_ptr + 3 * rows + slot, mask=active, other=0.0)
            total = tl.load(states_ptr + 4 * rows + slot, mask=active, other=1.0)
            selected = tl.load(states_ptr + 5 * rows + slot, mask=active, other=0.0)
            ref_logp, _, _ = log_softmax_of(largest, total, selected, inverse_temperature)
            kl, kl_slope = kl_terms(logp, ref_logp, active, ESTIMATOR)
            if PENALIZED:
                slope = slope + beta * kl_slope
        tl.store(softmax_ptr + slot, logp, mask=inside)
        tl.store(softmax_ptr + rows + slot, scaled_max, mask=inside)
        tl.store(softmax_ptr + 2 * rows + slot, log_sum, mask=inside)
        tl.store(softmax_ptr + 3 * rows + slot, tl.where(active, slope, 0.0), mask=inside)
        if OBSERVED:
            tl.store(observed_ptr + slot, ratio, mask=inside)
            tl.store(observed_ptr + rows + slot, kl, mask=inside)
            tl.store(observed_ptr + 2 * rows + slot, policy, mask=inside)
        policy_sum += tl.where(active, policy, 0.0) + 0.0
        kl_sum += tl.where(active, kl, 0.0) + 0.0
        count += active.to(tl.int64)
        count_low += clip_low.to(tl.int64)
        count_high += clip_high.to(tl.int64)
        code = tl.where(is_finite(policy), 0, 5)
        code = tl.where(is_finite(kl), code, 4)
        code = tl.where(is_finite(ratio), code, 3)
        code = tl.where(is_finite(ref_logp), code, 2)
        code = tl.where(is_finite(logp), code, 1)
        bad = active & (code != 0)
        found = tl.minimum(found, tl.where(bad, token.to(tl.int64) * 8 + code, nothing))
    first_found = tl.min(found, 0)
    first_found = tl.where(first_found == 1 << 62, 0, first_found)
    out_ptr = totals_ptr + sequence * 7
    tl.store(out_ptr, tl.sum(policy_sum, 0).to(tl.int32, bitcast=True).to(tl.int64))
    tl.store(out_ptr + 1, tl.sum(kl_sum, 0).to(tl.int32, bitcast=True).to(tl.int64))
    tl.store(out_ptr + 2, tl.sum(count, 0))
    tl.store(out_ptr + 3, tl.sum(count_low, 0))
    tl.store(out_ptr + 4, tl.sum(count_high, 0))
    tl.store(out_ptr + 5, first_found % 8)
    tl.store(out_ptr + 6, first_found // 8)


def launch_tokens(
    rewards_B: Tensor, inputs: LossInputs, plan: Plan, space: Workspace, observed_3N: Tensor | None
) -> None:
    """Terms and totals of this rank's S sequences from joined states; ratio, kl and policy on request.

    Totals are packed as `sequence_totals.pack` does.
    """
    sequences, length = inputs.active_ST.shape
    objective, softmax = plan.objective, space.part("softmax")
    launch(
        token_kernel,
        (sequences, 1),
        (
            space.part("states"),
            inputs.old_logps_ST.contiguous(),
            inputs.active_ST.contiguous(),
            rewards_B,
            *plan.group_of_sequence,
            softmax,
            space.part("totals"),
            softmax if observed_3N is None else observed_3N,
        ),
        (
            sequences * length,
            length,
            plan.first_sequence,
            plan.inverse_temperature,
            1 - objective.clip_eps_low,
            1 + objective.clip_eps_high,
            objective.beta,
            objective.advantage.std_eps,
        ),
        (
            SLOT_CHUNK,
            MEMBER_CHUNK,
            *plan.advantage_constants,
            space.layout.models == 2,
            *plan.penalty_constants,
            observed_3N is not None,
        ),
        SMALL,
    )
