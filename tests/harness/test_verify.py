"""`verify_loss` on live tensors: ours with virtual ranks, a user's emulation, and what needs real ranks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_contract import GRPOVerifyError, InputError
from harness.comparing.ulp import raw_bits
from harness.verify import verify_loss
from loss_ops.batch import GlobalBatch
from loss_ops.controls import faulty_op
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.virtual_layout import run_layout
from support.batches import SLICE, small

LAYOUTS = ("1x2", (2, 1), (3, 2))
ONE_LAYOUT = "expected (tp, dp) or TxD, such as (4, 1) or 4x1, both at least 1"


def emulated(batch: GlobalBatch, tp: int, dp: int) -> Mapping[str, Tensor]:
    """Ours, as a user's function would give it."""
    return run_layout(batch, tp, dp).quantities()


def broken(batch: GlobalBatch, tp: int, dp: int) -> Mapping[str, Tensor]:
    found = dict(emulated(batch, tp, dp))
    found["grad_policy_logits"] = found["grad_policy_logits"] * dp
    return found


def with_collectives(policy_local_logits: Tensor, *_: Tensor, contract, sharding, tp_group, dp_group) -> None:
    raise AssertionError("never called in one process")


def test_ours_is_proven_on_live_tensors() -> None:
    batch = small()
    batch.policy_logits.requires_grad_()
    report = verify_loss(batch=batch, layouts=LAYOUTS)
    assert (report.verdict, report.exit_status) == ("match", 0)
    assert [str(case.layout) for case in report.cases] == ["1x2", "2x1", "3x2"]
    assert {case.batch for case in report.cases} == {"live tensors"}


@pytest.mark.parametrize("batch", ["seed", SLICE, str(SLICE)])
def test_a_batch_may_be_a_name_or_a_file(batch: object) -> None:
    assert verify_loss(batch=batch, layouts=["2x2"]).exit_status == 0


def test_a_planted_fault_drifts_and_is_explained() -> None:
    report = verify_loss(faulty_op("gradient_scaled_by_dp"), small(), [(2, 3)])
    diagnosis = report.cases[0].diagnosis
    assert (report.verdict, report.exit_status) == ("drift", 1)
    assert diagnosis is not None
    assert (diagnosis.pattern, diagnosis.stage) == ("constant factor", "gradient")
    assert "logp" in diagnosis.inputs
    assert "constant factor 3 in grad_policy_logits" in diagnosis.words
    assert any("dp size 3" in cause for cause in diagnosis.likely)


def test_the_fingerprint_holds_how_the_op_launches_its_kernels() -> None:
    batch, launch = small(), {"warps": 4}
    tuned = verify_loss(DistributedGRPOLossOp(launch=launch), batch, ["1x2"])
    assert tuned.numeric_fingerprint == batch.contract.numeric_fingerprint(launch)
    assert verify_loss(batch=batch, layouts=["1x2"]).numeric_fingerprint == batch.contract.numeric_fingerprint()


def test_a_users_emulation_is_compared() -> None:
    assert verify_loss(emulated, small(), LAYOUTS).exit_status == 0
    report = verify_loss(broken, small(), ["1x2"])
    assert report.exit_status == 1
    assert [quantity.name for quantity in report.cases[0].drifted] == ["grad_policy_logits"]
    assert report.cases[0].diagnosis is not None
    assert report.cases[0].diagnosis.pattern == "constant factor"


@pytest.mark.parametrize("op", [with_collectives, "examples.all_reduce_loss:all_reduce_loss", 3])
def test_an_op_that_needs_real_ranks_is_sent_to_the_command(op: object) -> None:
    with pytest.raises(InputError, match="needs real ranks: launch it with grpo-verify --op"):
        verify_loss(op, small(), ["1x2"])


def test_the_baseline_alone_proves_nothing() -> None:
    report = verify_loss(batch=small(), layouts=["1x1"])
    assert (report.verdict, report.exit_status) == ("inconclusive", 3)


def test_an_emulation_that_returns_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="some of loss"):
        verify_loss(lambda batch, tp, dp: {"other": torch.zeros(1)}, small(), ["1x2"])


def test_another_run_that_differs_is_a_drift() -> None:
    calls = []

    def flaky(batch: GlobalBatch, tp: int, dp: int) -> Mapping[str, Tensor]:
        calls.append((tp, dp))
        found = dict(emulated(batch, tp, dp))
        if calls.count((1, 2)) == 2:
            found["loss"] = found["loss"] + 1
        return found

    assert verify_loss(flaky, small(), ["1x2"], repeat=2).exit_status == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"repeat": 0}, "repeat: expected an integer from 1 to 1000000, got 0"),
        ({"repeat": True}, "repeat: expected an integer from 1 to 1000000, got True"),
        ({"seed": -1}, "seed: expected an integer from 0 to 4294967295, got -1"),
        ({"layouts": "2x1"}, "layouts: expected a list of layouts, got '2x1'"),
        ({"layouts": None}, "layouts: expected a list of layouts, got None"),
        *(
            ({"layouts": [(1, 2), layout]}, f"layouts[1]: {ONE_LAYOUT}, got {layout!r}")
            for layout in ((0, 1), (-1, 2), 3, (1, 2, 3), "2x", ("a", "b"), (2.0, 1), (True, 2), None)
        ),
        ({"layouts": [(64, 1)]}, "expected 1 to 16, the number of vocabulary tiles, got 64"),
        ({"batch": 3}, "batch: expected a GlobalBatch, a built-in name or a capture file, got 3"),
        ({"op": lambda *_: None}, "the op's result: expected a mapping of quantities, got NoneType"),
        ({"op": lambda *_: {"loss": None}}, "the op's result: expected some of loss,"),
        ({"op": lambda *_: {"grad_policy_logits": 3}}, "the op's grad_policy_logits: expected a tensor"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_clear_error(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(GRPOVerifyError) as refused:
        verify_loss(**{"batch": "small", **arguments})
    assert words in str(refused.value)


def test_all_wrong_arguments_are_told_at_once() -> None:
    with pytest.raises(InputError) as refused:
        verify_loss(batch="small", layouts=[(0, 1), (1, 2), "x"], repeat=0, seed="a")  # type: ignore[arg-type]
    assert [problem.where for problem in refused.value.problems] == ["layouts[0]", "layouts[2]", "repeat", "seed"]


def zeroing(batch: GlobalBatch, tp: int, dp: int) -> Mapping[str, Tensor]:
    found = emulated(batch, tp, dp)
    batch.rewards.zero_()
    batch.policy_logits.mul_(2)
    return found


def test_an_op_that_overwrites_the_batch_has_copies_and_is_told() -> None:
    batch = small()
    rewards, logits = batch.rewards.clone(), batch.policy_logits.clone()
    report = verify_loss(zeroing, batch, ["1x2", "2x1"])
    assert torch.equal(batch.rewards, rewards)
    assert torch.equal(raw_bits(batch.policy_logits), raw_bits(logits))
    expected = tuple(f"the op overwrites its input {name}" for name in ("policy_logits", "rewards"))
    assert [case.notes for case in report.cases] == [expected, expected]
    assert report.exit_status == 0, "each call saw the batch as it was given"
    quantities = report.cases[0].quantities
    assert {each.name: each.power for each in quantities} == {
        each.name: each.power for each in verify_loss(emulated, batch, ["1x2"]).cases[0].quantities
    }


def test_what_is_not_compared_of_a_whole_result_is_told() -> None:
    report = verify_loss(lambda *call: {**emulated(*call), "pg_loss": torch.ones(1)}, small(), ["1x2"])
    (note,) = report.cases[0].notes
    assert note.startswith("not compared are the op's pg_loss: the names compared are loss, ")
    assert note.endswith("grad_policy_logits")
    assert verify_loss(emulated, small(), ["1x2"]).cases[0].notes == ()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"Loss": torch.ones(())}, "the op's result: expected the key loss, got Loss"),
        ({"Grad-Policy-Logits": None}, "the op's result: expected the key grad_policy_logits, got Grad-Policy"),
        (
            {"grad_policy_logits": small().policy_logits.to_sparse()},
            "the op's grad_policy_logits: expected a dense tensor of real numbers, got a tensor in the layout",
        ),
    ],
)
def test_a_whole_result_that_would_not_be_compared_is_refused(more: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refused:
        verify_loss(lambda *call: {**emulated(*call), **more}, small(), ["1x2"])
    assert words in str(refused.value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused() -> None:
    ragged = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(InputError, match=r"the op's kl: expected a dense tensor .*, got a tensor that is nested"):
        verify_loss(lambda *call: {**emulated(*call), "kl": ragged}, small(), ["1x2"])


def test_live_tensors_that_hold_no_elements_are_refused_at_once() -> None:
    batch = small()
    odd = replace(batch, rewards=batch.rewards.to_sparse(), old_logps=batch.old_logps.to("meta"))
    with pytest.raises(
        InputError, match=r"batch\.rewards: expected a dense tensor .* torch\.sparse_coo"
    ) as refused:
        verify_loss(batch=odd, layouts=["1x2"])
    assert [problem.where for problem in refused.value.problems] == ["batch.old_logps", "batch.rewards"]
