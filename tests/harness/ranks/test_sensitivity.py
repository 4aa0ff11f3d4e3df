"""An op whose own numbers could not show a difference proves nothing, and what it remembers does not pass."""

from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_contract import InputError, ShardingSpec
from harness.own_ops.ops import quantities_of, unknown_keys
from harness.ranks.batch_store import BatchStore, run_alone
from harness.ranks.batches import built_in
from harness.ranks.candidate import Groups, run_candidate
from harness.ranks.given_batch import batch_of
from harness.ranks.sensitivity import stepped, unmoved
from harness.settings.batch_spec import BUILT_IN, contract_for
from harness.settings.run_config import RunConfig
from harness.verify import verify_loss
from loss_ops.batch import GlobalBatch
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.virtual_layout import run_layout

GOOD = DistributedGRPOLossOp()


class Foreign:
    """Ours, with something done to its result; no subclass, as a user's op is none."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def apply(self, *arguments: Any, **options: Any) -> dict[str, Tensor]:
        result = GOOD.apply(*arguments, **options)
        return self.change({"loss": result.loss, "kl": result.kl, "advantages": result.advantages}, options)


def power_of(op: Any, batch: GlobalBatch) -> dict[str, float]:
    store = BatchStore({}, torch.device("cpu"))
    return store.power(op, batch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["small", "seed", "ragged"])
def test_a_good_op_is_moved_in_every_floating_quantity(name: str, dtype: str) -> None:
    spec = BUILT_IN[name]
    batch = built_in(spec, 0, contract_for(spec, RunConfig(dtype=dtype)))
    baseline = run_alone(GOOD, batch)
    assert unmoved(lambda moved: run_alone(GOOD, moved), batch, baseline) == frozenset()


def test_what_does_not_follow_the_inputs_has_no_power() -> None:
    batch = batch_of("small")
    constant = Foreign(lambda found, _: {**found, "kl": torch.tensor(0.25)})
    coarse = Foreign(lambda found, _: {**found, "kl": (found["kl"] * 8).round() / 8})
    rounded = Foreign(lambda found, _: {**found, "kl": found["kl"].bfloat16()})
    plain = power_of(Foreign(lambda found, _: found), batch)
    assert plain["kl"] > 0.0
    for op in (constant, coarse, rounded):
        power = power_of(op, batch)
        assert power["kl"] == 0.0
        assert power["loss"] == plain["loss"] > 0.0


def test_a_result_remembered_by_contract_has_no_power() -> None:
    batch, kept = batch_of("small"), dict[Any, Tensor]()
    op = Foreign(
        lambda found, options: {
            **found,
            "kl": kept.setdefault(options["contract"].numeric_fingerprint(), found["kl"]),
        }
    )
    assert power_of(op, batch)["kl"] == 0.0


def test_an_op_that_stores_the_baseline_is_seen_through() -> None:
    """At 1x1 it remembers its loss, elsewhere it returns what it remembers."""
    held: list[Tensor] = []

    def remember(batch: GlobalBatch, tp: int, dp: int) -> dict[str, Tensor]:
        if (tp, dp) == (1, 1):
            outcome = run_layout(batch, 1, 1, op=GOOD)
            held[:] = [outcome.quantities()["loss"]]
        return {"loss": held[0]}

    assert verify_loss(remember, "small", ["1x2"]).verdict.value == "drift"


def test_steps_are_small_and_the_same_each_time() -> None:
    batch = batch_of("small")
    one, other = stepped(batch, 1), stepped(batch, 1)
    assert torch.equal(one.policy_logits, other.policy_logits)
    assert not torch.equal(one.policy_logits, batch.policy_logits)
    assert torch.allclose(one.policy_logits, batch.policy_logits, rtol=1e-5, atol=0)
    assert torch.equal(one.action_ids, batch.action_ids)
    assert not torch.equal(stepped(batch, 0).rewards, one.rewards)


def test_an_op_that_checks_its_inputs_keeps_the_power_of_ours() -> None:
    batch = batch_of("small")

    def picky(found: dict[str, Tensor], options: dict[str, Any]) -> dict[str, Tensor]:
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("not what I was told")
        return found

    calls: list[int] = []
    assert power_of(Foreign(picky), batch)["loss"] > 0.0


def test_inputs_that_an_op_overwrites_are_told() -> None:
    batch = batch_of("small")

    class Overwriting(Foreign):
        def apply(self, *arguments: Any, **options: Any) -> dict[str, Tensor]:
            result = super().apply(*arguments, **options)
            arguments[3].zero_()
            return result

    notes: list[str] = []
    alone = ShardingSpec.even(1, 1, contract=batch.contract)
    run_candidate(Overwriting(lambda found, _: found), batch, alone, Groups(), notes=notes)
    assert notes == ["the op overwrites its input rewards"]
    assert batch.rewards.any()


def test_keys_that_are_no_quantities_are_told() -> None:
    found = {"loss": torch.tensor(1.0), "pg_loss": torch.tensor(1.0), "stages": {}, "lr": 0.1}
    assert unknown_keys(found)[0].startswith("not compared are the op's pg_loss: the names compared are loss, ")
    assert unknown_keys({"loss": torch.tensor(1.0)}) == unknown_keys(torch.tensor(1.0)) == []


def test_further_elements_of_a_tuple_are_told() -> None:
    one, four = torch.tensor(1.0), (torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0), torch.tensor(4.0))
    told = "not compared are the op's tuple element 4: the first elements compared are loss, policy_loss, kl"
    assert unknown_keys(four) == [told]
    assert unknown_keys((*four[:3], {"lr": one}, one))[0].startswith("not compared are the op's tuple element 5:")
    assert unknown_keys(four[:3]) == unknown_keys((one,)) == unknown_keys(()) == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(2, device="meta"), "on the device meta"),
        (torch.ones(2, dtype=torch.complex64), "of torch.complex64"),
        (torch.ones(2).to_sparse(), "in the layout torch.sparse_coo"),
    ],
)
def test_tensors_that_cannot_be_compared_are_refused(value: Tensor, words: str) -> None:
    with pytest.raises(
        InputError, match=f"the op's kl: expected a dense tensor of real numbers, got a tensor {words}"
    ):
        quantities_of({"loss": torch.tensor(1.0), "kl": value}, torch.ones(1, 1, 1))
