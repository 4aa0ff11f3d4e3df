"""Stages seen from outside: ours, an op that takes `observe` or returns `stages`, one that shows nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_contract import ShardingSpec
from harness.comparing.drift import Drift
from harness.own_ops.ops import resolve, shows_stages, stages_of
from harness.ranks.candidate import Groups
from harness.ranks.layout_runner import runner_of
from harness.ranks.rank_outcome import RankOutcome, have_drifted
from harness.ranks.stage_run import virtual_stages, with_rank_stages, with_virtual_stages
from loss_ops.controls import faulty_op
from loss_ops.distributed_loss import DistributedGRPOLossOp
from support.batches import small

STAGES = {"logp", "ratio", "kl", "policy"}
DRIFTED = RankOutcome(tp_rank=0, dp_rank=0, drifts=(Drift(name="loss", elements=1, nonzero=1, mismatched=1),))


class Foreign:
    """An op around ours that shows its ratio in one of two ways, another one at every call."""

    def __init__(self, *, takes: bool, returns: bool) -> None:
        self.takes, self.returns, self.calls = takes, returns, 0
        if takes:
            self.apply = self._with_observe
        else:
            self.apply = self._without

    def _ratio(self, ids: Tensor) -> Tensor:
        self.calls += 1
        return torch.full(ids.shape, float(self.calls))

    def _without(self, logits: Tensor, ids: Tensor, *rest: Tensor, contract: Any, **_: Any) -> dict[str, Any]:
        stages = {"stages": {"ratio": self._ratio(ids)}} if self.returns else {}
        return {"loss": logits.nan_to_num().sum(), **stages}

    def _with_observe(self, logits: Tensor, ids: Tensor, *rest: Tensor, observe: Any = None, **_: Any) -> Any:
        if observe is not None:
            observe("ratio", self._ratio(ids))
        return {"loss": logits.nan_to_num().sum()}


def staged(op: Any) -> RankOutcome:
    batch = small()
    alone = ShardingSpec.even(1, 1, contract=batch.contract)
    return with_rank_stages(DRIFTED, op, batch, alone, Groups())


def test_ours_shows_four_stages_that_agree() -> None:
    op = resolve("grpo_loss", None, small().contract, "cpu")
    assert shows_stages(op)
    found = staged(op)
    assert {drift.name for drift in found.stages} == {f"token_{name}" for name in STAGES}
    assert not any(drift.mismatched for drift in found.stages)


@pytest.mark.parametrize(("takes", "returns"), [(True, False), (False, True)])
def test_a_foreign_op_may_show_stages(takes: bool, returns: bool) -> None:
    op = Foreign(takes=takes, returns=returns)
    assert shows_stages(op) is takes
    (stage,) = staged(op).stages
    batch = small()
    assert (stage.name, stage.mismatched) == ("token_ratio", int(batch.completion_mask.sum()))


def test_an_op_without_stages_is_judged_by_its_outputs() -> None:
    assert staged(Foreign(takes=False, returns=False)).stages == ()
    assert stages_of((torch.zeros(1),)) == {}


def test_virtual_ranks_show_their_own_sequences() -> None:
    batch = small()
    seen = virtual_stages(DistributedGRPOLossOp(), batch, (2, 3))
    assert set(seen) == {(t, d) for t in range(2) for d in range(3)}
    assert {name: tuple(each.shape) for name, each in seen[1, 2].items()} == dict.fromkeys(STAGES, (2, 8))


def test_stages_are_added_only_where_something_drifted() -> None:
    batch, op = small(), DistributedGRPOLossOp()
    assert not have_drifted([RankOutcome(tp_rank=0, dp_rank=0)])
    quiet = [RankOutcome(tp_rank=0, dp_rank=0)]
    assert with_virtual_stages(quiet, op, batch, (1, 2)) is quiet
    bad = faulty_op("advantages_off_by_one_rank")
    from harness.planning.planned import PlannedCase

    case = PlannedCase(index=0, name="x", op="x", layout=(1, 2), batch="b", seed=0, repeat=1)
    stages = {drift.name: drift.mismatched for drift in runner_of(bad, batch)(case)[0].stages}
    assert (stages["token_ratio"], stages["token_logp"]) == (0, 0)
    assert stages["token_policy"] > 0
