"""GRPO training as one program for real and virtual ranks, with the same parameter bits at every DP degree.

An update: a rollout that every rank knows whole, then passes over it. In a pass each rank computes its sequences
in parts, each block of sequences gives one gradient, and the gradients of all blocks are combined in the order
that `combine` fixes. Every rank takes the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, GRPOVerifyError, InputError, Problem
from harness.workloads.blocks import block_bounds, part_bounds, sharding_of
from harness.workloads.combine import Combine, GradientSum
from harness.workloads.mistakes import Mistake, mistaken
from harness.workloads.ranks import Place, TrainingProgram
from loss_ops.agreement import agree
from loss_ops.checked_program import Checks
from loss_ops.collect_parts import collect
from loss_ops.fixed_batch import FixedBatch, Part, fix_batch, rank_call
from loss_ops.loss_call import LossCall
from loss_ops.result import GRPOLossResult


@dataclass(frozen=True)
class Rollout:
    """A batch of answers, known whole on every rank: [B, T] ids and mask, and what the policy needs beside."""

    contract: GRPOLossContract
    action_ids_BT: Tensor
    mask_BT: Tensor
    source: Any


class Workload(Protocol):
    """A policy with its task and its optimizer. `block` sequences give one gradient; `op` is the loss op."""

    block: int
    op: Any

    def parameters(self) -> dict[str, Tensor]:
        """The trained tensors by name, in a fixed order."""

    def rollout(self, update: int, place: Place) -> TrainingProgram[Rollout]:
        """The answers of update `update`, which must not depend on `place`."""

    def rewards(self, rollout: Rollout, start: int, stop: int) -> Tensor:
        """[stop - start] rewards of these global sequences."""

    def logprobs(self, rollout: Rollout, start: int, stop: int) -> Tensor:
        """[stop - start, T] float32 log-probabilities of the taken tokens under the present parameters."""

    def part(
        self, rollout: Rollout, start: int, stop: int, apply: Callable[..., Part]
    ) -> tuple[Part, Iterable[tuple[int, Tensor]]]:
        """Forward and backward of whole blocks: the part, and (block, flat gradient) of each of its blocks.

        `apply(logits, start=..., ref_local_logits=...)` is the loss op with everything else filled in.
        """

    def step(self, gradient: Tensor) -> None:
        """Move the parameters by the batch's flat gradient."""


@dataclass(frozen=True)
class Recipe:
    """How to train: passes over a rollout, how gradients are combined, sequences per part (None: all at once).

    `mistake` plants a usual error of trainers, to show that it is seen. `validate` is that of the loss op.
    `on_part` is called after each part: a sign of life.
    """

    passes: int = 4
    combine: Combine = Combine.FIXED_ORDER
    micro_batch: int | None = None
    mistake: Mistake | None = None
    validate: str = "full"
    on_part: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Update:
    """What an update did: its number from 1, the loss of its last pass, the rewards [B] of its rollout.

    `old_logps` are those of the rank's own sequences.
    """

    number: int
    result: GRPOLossResult
    rewards_B: Tensor
    rollout: Rollout
    old_logps: Tensor


OnUpdate = Callable[[Update], None]


def train(
    workload: Workload, updates: Iterable[int], place: Place, recipe: Recipe, on_update: OnUpdate
) -> TrainingProgram[None]:
    """Run `updates` (numbers from 1) as DP rank `place`; `on_update` is called after each.

    Raises InputError, the same on every rank, for rewards that are not finite or missing, for empty answers, and
    for values that overflowed on one rank.
    """
    for number in updates:
        on_update((yield from train_update(workload, number, place, recipe)))


def train_update(workload: Workload, number: int, place: Place, recipe: Recipe) -> TrainingProgram[Update]:
    """One update: rollout, rewards gathered, then the passes; returns the loss of the last."""
    rollout = yield from workload.rollout(number, place)
    check_answers(rollout.mask_BT)
    blocks = block_bounds(rollout.contract, workload.block, place)
    call = _call(workload, rollout, place)
    checks = Checks("full" if recipe.validate == "full" else "off", place.degree > 1, workload.op.identity)
    fixed = yield from fix_batch(call, checks)
    parts: list[Part] = []
    for _ in range(recipe.passes):
        gradients = GradientSum(recipe.combine, blocks, place)
        error = None
        try:
            parts = _pass(workload, rollout, fixed, recipe, place, gradients)
        except GRPOVerifyError as found:
            error = found
        yield from agree(error, (1, place.degree), rollout.action_ids_BT.device)
        workload.step((yield from gradients.combined()))
    return Update(number, (yield from collect(fixed, parts)), fixed.rewards[0], rollout, call.old_logps)


def _call(workload: Workload, rollout: Rollout, place: Place) -> LossCall:
    """This rank's sequences of the rollout, with their rewards and log-probabilities before the update."""
    sharding = sharding_of(rollout.contract, workload.block, place)
    start, stop = sharding.sequence_shard
    return rank_call(
        rollout.action_ids_BT[start:stop],
        workload.logprobs(rollout, start, stop),
        _filled(workload.rewards(rollout, start, stop), stop - start),
        contract=rollout.contract,
        sharding=sharding,
        completion_mask=rollout.mask_BT[start:stop],
        has_reference=rollout.contract.objective.beta > 0,
        group_sizes=(None, place.degree),
    )


def _pass(
    workload: Workload,
    rollout: Rollout,
    fixed: FixedBatch,
    recipe: Recipe,
    place: Place,
    gradients: GradientSum,
) -> list[Part]:
    """Forward and backward of this rank's sequences, part by part; needs no other rank."""
    done = []
    cuts = part_bounds(*fixed.rows, recipe.micro_batch, workload.block)
    for start, stop in cuts:
        used, scale = mistaken(recipe.mistake, fixed, (start, stop), len(cuts), place.degree)

        def apply(logits: Tensor, used: FixedBatch = used, scale: float = scale, **options: Any) -> Part:
            return used.apply(workload.op, logits, grad_scale=scale, validate=recipe.validate, **options)

        part, leaves = workload.part(rollout, start, stop, apply)
        done.append(part)
        for block, gradient in leaves:
            gradients.add_leaf(block, gradient)
        recipe.on_part()
    return done


def check_answers(mask_BT: Tensor) -> None:
    """Raise InputError naming the sequences without a token: training has nothing to learn from them."""
    empty = (mask_BT == 0).all(dim=1).nonzero().flatten().tolist()
    if empty:
        raise InputError(
            [
                Problem("input.empty_answer", f"completion_mask at sequence {each}", "at least one token", "none")
                for each in empty[:4]
            ]
        )


def _filled(rewards: Tensor, count: int) -> Tensor:
    """A missing reward as a NaN, which the loss op refuses by its sequence, on every rank."""
    missing = count - len(rewards)
    return (
        rewards if missing <= 0 else torch.cat((rewards.float(), rewards.new_full((missing,), torch.nan).float()))
    )
