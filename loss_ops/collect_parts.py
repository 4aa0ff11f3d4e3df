"""From the parts of a batch to its result: per-sequence totals gathered, and the scalars of the whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from grpo_contract import InputError, Problem
from loss_ops.agreement import agree
from loss_ops.fixed_batch import FixedBatch, Part
from loss_ops.gather import Gather, Program
from loss_ops.loss_program import total_loss
from loss_ops.normalizer import normalization
from loss_ops.result import ClipCounts, GRPOLossResult
from loss_ops.scalars import Scalars


def collect(fixed: FixedBatch, parts: Iterable[Part]) -> Program[GRPOLossResult]:
    """The result of the whole batch from all parts of all ranks; its loss carries no gradient.

    `parts` may be a generator that computes each part when it is asked for. Where that raises on one rank, or the
    parts do not cover a rank's sequences once (InputError), every rank raises the same error (`agree`), so that
    none waits for the others. Then gathers per-sequence totals over DP, float32, and clip counts, int64; sequences
    of the batch are folded by halves, as in one call.
    """
    ordered, error = _in_order(parts, fixed.rows)
    place = fixed.call.sharding
    yield from agree(error, (place.tp_degree, place.dp_degree), fixed.active_tokens_B.device)
    sizes = tuple(stop - start for start, stop in fixed.call.sharding.sequence_shard_bounds)
    totals = yield Gather("dp", torch.cat([_own_totals(part) for part in ordered]), sizes, "sequence totals")
    counts = [part.result.clip_counts for part in ordered]
    clips = torch.stack([torch.stack((each.low, each.high)) for each in counts])
    counted = yield Gather("dp", clips.sum(dim=0, keepdim=True), (1,) * len(sizes), "clip counts")
    policy_B, kl_B = torch.cat(totals).unbind(dim=1)
    low, high = torch.cat(counted).sum(dim=0).unbind()
    norm = normalization(fixed.active_tokens_B, fixed.contract)
    scalars = Scalars(norm.scalar(policy_B), norm.scalar(kl_B), norm.weight_B)
    first = ordered[0].result
    return GRPOLossResult(
        loss=total_loss(scalars, fixed.contract.objective.beta),
        policy_loss=scalars.policy_loss,
        kl=scalars.kl,
        per_sequence_policy=policy_B,
        per_sequence_kl=kl_B,
        per_sequence_active_tokens=fixed.active_tokens_B,
        advantages=first.advantages,
        clip_counts=ClipCounts(low, high, low + high, fixed.active_tokens_B.sum()),
        provenance={**first.provenance, "parts": len(ordered)},
    )


def _in_order(parts: Iterable[Part], rows: tuple[int, int]) -> tuple[list[Part], Exception | None]:
    """The parts in batch order, or what went wrong: other ranks wait to hear of it."""
    try:
        ordered = sorted(parts, key=lambda part: part.start)
        _check_cover(ordered, rows)
    except Exception as error:
        return [], error
    return ordered, None


def _own_totals(part: Part) -> Tensor:
    rows = slice(part.start, part.stop)
    return torch.stack((part.result.per_sequence_policy[rows], part.result.per_sequence_kl[rows]), dim=1)


def _check_cover(parts: Sequence[Part], rows: tuple[int, int]) -> None:
    edges = [rows[0], *(part.stop for part in parts)]
    starts = [*(part.start for part in parts), rows[1]]
    if edges != starts:
        got = ", ".join(f"[{part.start}, {part.stop})" for part in parts) or "no part"
        raise InputError(Problem("input.part", "parts", f"parts that cover [{rows[0]}, {rows[1]}) once", got))
