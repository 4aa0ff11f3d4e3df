"""Every case file: values, errors, and equal bits, through the virtual ranks and through the public ops."""

from typing import Any

import pytest
import torch

from grpo_contract import ContractError, GRPOVerifyError, InputError, ShardingSpec
from loss_ops import kernel_registry
from loss_ops.batch import GlobalBatch
from loss_ops.quantities import quantities
from loss_ops.virtual_layout import run_layout
from oracle.cases import Case, load_cases
from oracle.expect import mismatches
from support.batches import as_actual, case_batch
from support.bits import differing

CASES = load_cases()
VALUE_CASES = [case for case in CASES if case.expected is not None]
ERROR_CASES = [case for case in CASES if case.expected is None]
KINDS: dict[str, type[GRPOVerifyError]] = {"input": InputError, "contract": ContractError}


def layouts(cases: list[Case]) -> list[Any]:
    """Each case at each of its layouts, and beyond them at an uneven split."""
    return [
        pytest.param(case, layout, id=f"{case.name}-{layout[0]}x{layout[1]}")
        for case in cases
        for layout in case.layouts
    ]


def bounds_of(case: Case, layout: tuple[int, int]) -> tuple[tuple[int, int], ...] | None:
    return case.dp_bounds.get(layout[1])


def dense_fields(batch: GlobalBatch) -> dict[str, Any]:
    """A contract as the flat names that the dense op takes."""
    content = batch.contract.model_dump(mode="json")
    objective = content["objective"]
    advantage = objective.pop("advantage")
    return {
        **objective,
        **{"advantage": advantage["kind"], "std_eps": advantage["std_eps"]},
        **{name: value for name, value in content["reduction"].items() if value is not None},
        "vocab_size": batch.contract.logprob.real_vocab_size,
        "group_boundaries": batch.contract.geometry.group_boundaries,
    }


def run_dense(case: Case) -> dict[str, torch.Tensor]:
    batch = case_batch(case)
    logits = batch.policy_logits.requires_grad_()
    op = kernel_registry.get_op("grpo_loss")
    tensors = (batch.ref_logits, batch.action_ids, batch.old_logps, batch.rewards, batch.completion_mask)
    result = op(logits, *tensors, **dense_fields(batch))
    result.loss.backward()
    assert logits.grad is not None
    return quantities(result, logits.grad)


def run_sharded(case: Case) -> dict[str, torch.Tensor]:
    batch = case_batch(case)
    dispatched = kernel_registry.get_loss_op(batch.contract)
    logits = batch.policy_logits.requires_grad_()
    result = dispatched.op.apply(
        logits.flatten(0, 1),
        batch.action_ids.flatten(),
        batch.old_logps.flatten(),
        batch.rewards,
        contract=batch.contract,
        completion_mask=batch.completion_mask.flatten(),
        ref_local_logits=batch.ref_logits,
    )
    result.loss.backward()
    assert logits.grad is not None
    return quantities(result, logits.grad)


@pytest.mark.parametrize(("case", "layout"), layouts(VALUE_CASES))
def test_values_and_bits_at_every_layout(case: Case, layout: tuple[int, int]) -> None:
    batch = case_batch(case)
    outcome = run_layout(batch, *layout, sequence_bounds=bounds_of(case, layout))
    baseline = run_layout(batch, 1, 1).quantities()
    assert len(outcome.results) == layout[0] * layout[1]
    for place in outcome.results:
        got = outcome.quantities(place)
        assert mismatches(case, as_actual(got)) == []
        assert differing(baseline, got) == {}


@pytest.mark.parametrize("case", VALUE_CASES, ids=lambda case: case.name)
def test_public_ops_give_the_same_bits(case: Case) -> None:
    baseline = run_layout(case_batch(case), 1, 1).quantities()
    for run in (run_dense, run_sharded):
        got = run(case)
        assert mismatches(case, as_actual(got)) == []
        assert differing(baseline, got) == {}


@pytest.mark.parametrize(("case", "layout"), layouts(ERROR_CASES))
def test_errors_at_every_layout(case: Case, layout: tuple[int, int]) -> None:
    assert case.expected_error is not None
    with pytest.raises(KINDS[case.expected_error.kind]) as caught:
        run_layout(case_batch(case), *layout)
    assert case.expected_error.missing_from(str(caught.value)) == []


@pytest.mark.parametrize("case", ERROR_CASES, ids=lambda case: case.name)
def test_errors_of_the_public_ops(case: Case) -> None:
    assert case.expected_error is not None
    for run in (run_dense, run_sharded):
        with pytest.raises(KINDS[case.expected_error.kind]) as caught:
            run(case)
        assert case.expected_error.missing_from(str(caught.value)) == []


def test_a_case_that_is_run_wrongly_is_seen() -> None:
    """The comparison can fail: the golden case under another clip, temperature or beta has other values."""
    case = next(case for case in VALUE_CASES if case.name == "golden-dyadic-grid")
    for change in ({"clip_eps_high": 0.3}, {"temperature": 1.01}, {"beta": 0.041}, {"kl_estimator": "k2"}):
        outcome = run_layout(case_batch(case, **change), 1, 1)
        assert mismatches(case, as_actual(outcome.quantities())) != [], change


def test_explicit_sharding_is_the_default_one() -> None:
    case = next(case for case in VALUE_CASES if case.name == "temperature-two")
    batch = case_batch(case)
    op = kernel_registry.get_loss_op(batch.contract).op
    alone = ShardingSpec.even(1, 1, contract=batch.contract)
    call = (batch.policy_logits, batch.action_ids, batch.old_logps, batch.rewards)
    losses = [
        op.apply(*call, contract=batch.contract, sharding=sharding, ref_local_logits=batch.ref_logits,
                 completion_mask=batch.completion_mask).loss
        for sharding in (None, alone)
    ]  # fmt: skip
    assert torch.equal(*losses)
