"""The stages of an op, seen from outside: a second run of a drifting case, only to look between its steps.

Stages are [S, T] float32 tensors of a rank's own sequences: logp, ratio, kl, policy. Ours and any op whose
`apply` takes `observe(name, tensor)` show them; an op may also return them as `stages`, a mapping by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from grpo_contract import ShardingSpec
from harness.comparing.comparison import compare
from harness.comparing.drift import Drift
from harness.comparing.frame import Frame
from harness.diagnosis.stage_order import STAGE_PREFIX
from harness.own_ops.ops import LossOp
from harness.ranks.candidate import NO_GROUPS, Groups, run_candidate
from harness.ranks.rank_outcome import RankOutcome, have_drifted
from loss_ops.batch import GlobalBatch
from loss_ops.checked_program import Checks, checked_program
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.virtual_layout import layout_shardings
from loss_ops.virtual_ranks import Place, run_virtual

Stages = dict[str, Tensor]


def virtual_stages(op: DistributedGRPOLossOp, batch: GlobalBatch, layout: tuple[int, int]) -> dict[Place, Stages]:
    """What every virtual rank of a layout shows. Raises what the ranks raise."""
    seen: dict[Place, Stages] = {}
    programs = {}
    for each in layout_shardings(batch, *layout):
        place = (each.tp_rank, each.dp_rank)
        call = replace(batch.shard(each), group_sizes=layout)
        seen[place] = {}
        programs[place] = checked_program(call, op.stages, Checks(), observe=_recorder(seen[place]))
    with torch.no_grad():
        run_virtual(programs)
    return seen


def _recorder(kept: Stages) -> Callable[[str, Tensor], None]:
    def observe(name: str, tensor: Tensor) -> None:
        kept[name] = tensor.detach().clone()

    return observe


def with_rank_stages(
    outcome: RankOutcome,
    op: LossOp,
    batch: GlobalBatch,
    sharding: ShardingSpec,
    groups: Groups,
    alone: Groups = NO_GROUPS,
) -> RankOutcome:
    """The outcome of a real rank with its stages. Every rank of the layout has to call this in step.

    `alone` are the groups of a call at 1x1.
    """
    expected: Stages = {}
    got: Stages = {}
    run_candidate(op, batch, ShardingSpec.even(1, 1, contract=batch.contract), alone, observe=_recorder(expected))
    run_candidate(op, batch, sharding, groups, observe=_recorder(got))
    return outcome.model_copy(update={"stages": compare_stages(expected, got, batch, sharding)})


def compare_stages(expected: Stages, got: Stages, batch: GlobalBatch, sharding: ShardingSpec) -> tuple[Drift, ...]:
    """A rank's stages against the baseline's rows; what masked slots hold does not count."""
    start, stop = sharding.sequence_shard
    active = batch.completion_mask[start:stop] != 0
    frame = Frame(batch)
    return tuple(
        compare(
            f"{STAGE_PREFIX}{name}",
            torch.where(active, expected[name][start:stop], 0.0),
            torch.where(active, value, 0.0),
            (start, 0),
            sharded=True,
            frame=frame,
        )
        for name, value in got.items()
        if name in expected and value.shape == active.shape
    )


def with_virtual_stages(
    outcomes: list[RankOutcome], op: DistributedGRPOLossOp, batch: GlobalBatch, layout: tuple[int, int]
) -> list[RankOutcome]:
    """The outcomes of virtual ranks with their stages, where any of them drifted; the others as they are."""
    if not have_drifted(outcomes):
        return outcomes
    expected = virtual_stages(op, batch, (1, 1))[0, 0]
    got = virtual_stages(op, batch, layout)
    places = {(each.tp_rank, each.dp_rank): each for each in layout_shardings(batch, *layout)}
    return [_with_stages(each, expected, got, batch, places) for each in outcomes]


def _with_stages(
    outcome: RankOutcome, expected: Stages, got: dict[Place, Stages], batch: GlobalBatch,
    places: dict[Place, ShardingSpec],
) -> RankOutcome:  # fmt: skip
    place = (outcome.tp_rank, outcome.dp_rank)
    return outcome.model_copy(update={"stages": compare_stages(expected, got[place], batch, places[place])})
