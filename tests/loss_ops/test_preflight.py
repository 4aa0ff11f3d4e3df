"""Preflight: whatever one rank has wrong, all ranks raise the same error before anything is computed."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from grpo_contract import (
    GRPOLossContract,
    GRPOVerifyError,
    InputError,
    LogprobContractError,
    LossContractError,
    PreflightError,
    ShardingError,
)
from loss_ops.batch import GlobalBatch
from loss_ops.checked_program import Checks, checked_program
from loss_ops.distributed_loss import KEPT, DistributedGRPOLossOp, _remember
from loss_ops.gather import AllReduce, Gather, Gathered, Program, Request
from loss_ops.loss_call import LossCall
from loss_ops.stages import NATIVE_STAGES
from loss_ops.virtual_layout import layout_shardings, run_layout
from loss_ops.virtual_ranks import run_virtual
from support.batches import small, with_contract

Place = tuple[int, int]
Calls = dict[Place, LossCall]


def calls_of(batch: GlobalBatch, tp: int = 2, dp: int = 2) -> Calls:
    """Every rank's call, by (tp_rank, dp_rank)."""
    return {
        (each.tp_rank, each.dp_rank): replace(batch.shard(each), group_sizes=(tp, dp))
        for each in layout_shardings(batch, tp, dp)
    }


def programs(calls: Calls, checks: Checks | None = None) -> dict[Place, Program[Any]]:
    return {place: checked_program(call, NATIVE_STAGES, checks or Checks()) for place, call in calls.items()}


def errors_of_all(programs_of: Mapping[Place, Program[Any]]) -> dict[Place, tuple[GRPOVerifyError, list[Request]]]:
    """Drive every rank to its own error, and keep what it asked of the others until then.

    Written out here, apart from the virtual driver, which stops at the first error.
    """
    requests: dict[Place, list[Request]] = {place: [] for place in programs_of}
    errors: dict[Place, GRPOVerifyError] = {}
    answers: dict[Place, Gathered] = {}
    while len(errors) < len(programs_of):
        for place, program in programs_of.items():
            try:
                requests[place].append(program.send(answers[place]) if answers else next(program))
            except GRPOVerifyError as error:
                errors[place] = error
        assert len(errors) in (0, len(programs_of)), f"only some ranks raised: {sorted(errors)}"
        answers = {place: answer_to(place, requests) for place in programs_of} if not errors else {}
    return {place: (errors[place], requests[place]) for place in programs_of}


def answer_to(place: Place, requests: Mapping[Place, list[Request]]) -> Gathered:
    asked = requests[place][-1]
    assert not isinstance(asked, AllReduce)
    axis = 0 if asked.axis == "tp" else 1
    line = sorted((other[axis], other) for other in requests if other[1 - axis] == place[1 - axis])
    return Gathered(requests[other][-1].tensor.clone() for _, other in line)


def raised(calls: Calls, kind: type[GRPOVerifyError], checks: Checks | None = None) -> GRPOVerifyError:
    """The one error that all ranks raise, before any tensor of the loss travels."""
    found = errors_of_all(programs(calls, checks))
    texts = {str(error) for error, _ in found.values()}
    assert len(texts) == 1
    assert {type(error) for error, _ in found.values()} == {kind}
    purposes = {request.purpose for _, requests in found.values() for request in requests}
    assert purposes == {"preflight"}
    return next(iter(found.values()))[0]


def lines(error: GRPOVerifyError) -> list[str]:
    return [str(problem) for problem in error.problems]


def changed(place: Place, **fields: Any) -> Callable[[Calls], Calls]:
    return lambda calls: calls | {place: replace(calls[place], **fields)}


PLACES = [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_ranks_that_agree_get_through() -> None:
    assert set(run_virtual(programs(calls_of(small())))) == set(PLACES)


@pytest.mark.parametrize("place", PLACES)
def test_another_beta_on_one_rank(place: Place) -> None:
    batch = small()
    other = with_contract(batch, objective={"beta": 0.05}).contract
    error = raised(changed(place, contract=other)(calls_of(batch)), PreflightError)
    if place == (0, 0):
        assert len(lines(error)) == 3
        return
    expected = "0.04 as on rank (tp 0, dp 0)"
    where = f"rank (tp {place[0]}, dp {place[1]})"
    assert lines(error) == [f"objective.beta on {where}: expected {expected}, got 0.05"]


@pytest.mark.parametrize("line", [[(1, 0), (1, 1)], [(0, 1), (1, 1)]])
def test_another_beta_on_a_whole_line(line: list[Place]) -> None:
    """The ranks of a line agree with each other: only both axes together show it."""
    batch = small()
    other = with_contract(batch, objective={"beta": 0.05}).contract
    calls = calls_of(batch)
    error = raised(calls | {place: replace(calls[place], contract=other) for place in line}, PreflightError)
    assert [problem.where for problem in error.problems] == [
        f"objective.beta on rank (tp {tp}, dp {dp})" for tp, dp in sorted(line)
    ]


@pytest.mark.parametrize(
    ("section", "fields", "names"),
    [
        ("objective", {"kl_estimator": "k1"}, ["objective.kl_estimator"]),
        (
            "objective",
            {"temperature": 1.5, "clip_eps_low": 0.1},
            ["objective.clip_eps_low", "objective.temperature"],
        ),
        ("logprob", {"num_vocab_tiles": 6}, ["logprob.num_vocab_tiles"]),
        ("geometry", {"group_boundaries": (0, 4, 6)}, ["geometry.group_boundaries"]),
    ],
)
def test_every_field_is_compared(section: str, fields: dict[str, Any], names: list[str]) -> None:
    batch = small()
    other = with_contract(batch, **{section: fields}).contract
    error = raised(changed((1, 1), contract=other)(calls_of(batch)), PreflightError)
    assert [problem.where for problem in error.problems] == [f"{name} on rank (tp 1, dp 1)" for name in names]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("completion_mask", lambda call: {"completion_mask": ~call.completion_mask}),
        ("action_ids", lambda call: {"action_ids": (call.action_ids + 1).clamp(0, 20)}),
        ("old_logps", lambda call: {"old_logps": call.old_logps * 2}),
        ("rewards", lambda call: {"rewards": call.rewards + 1}),
    ],
)
@pytest.mark.parametrize("place", PLACES)
def test_tp_siblings_with_other_inputs(
    name: str, change: Callable[[LossCall], dict[str, Any]], place: Place
) -> None:
    calls = calls_of(clean())
    calls = changed(place, **change(calls[place]))(calls)
    error = raised(calls, PreflightError)
    where = f"on rank (tp 1, dp {place[1]})"
    assert {problem.code for problem in error.problems} == {"preflight.digest"}
    # What is masked differently is also cleaned differently: another mask is named alone.
    assert [problem.where for problem in error.problems] == [f"{name} {where}"]
    assert f"as on rank (tp 0, dp {place[1]}), got sha256 " in lines(error)[-1]


def clean() -> GlobalBatch:
    """Without garbage in masked slots, so that a mask turned round shows nothing but another mask."""
    batch = small()
    masked = ~batch.completion_mask
    return replace(
        batch,
        policy_logits=batch.policy_logits.masked_fill(masked[..., None], 0.0),
        action_ids=batch.action_ids.masked_fill(masked, 0),
        old_logps=batch.old_logps.masked_fill(masked, -1.0),
    )


def test_masked_slots_are_no_disagreement() -> None:
    calls = calls_of(small())
    call = calls[1, 0]
    assert call.completion_mask is not None
    masked = ~call.completion_mask
    other = {
        "action_ids": call.action_ids.masked_fill(masked, 7),
        "old_logps": call.old_logps.masked_fill(masked, 3.0),
    }
    assert masked.any()
    assert set(run_virtual(programs(changed((1, 0), **other)(calls)))) == set(PLACES)


@pytest.mark.parametrize("place", PLACES)
def test_a_reference_missing_on_one_rank(place: Place) -> None:
    batch = small()
    missing = changed(place, ref_local_logits=None)
    error = raised(missing(calls_of(batch)), LossContractError)
    assert lines(error) == ["ref_logits: expected reference logits (beta is 0.04), got nothing"]
    error = raised(missing(calls_of(with_contract(batch, objective={"beta": 0.0}))), PreflightError)
    assert {problem.code for problem in error.problems} == {"preflight.reference"}


@pytest.mark.parametrize("place", PLACES)
def test_a_bad_value_on_one_rank(place: Place) -> None:
    batch = clean()
    calls = calls_of(batch)
    ids = calls[place].action_ids.clone()
    mask = calls[place].completion_mask
    assert mask is not None
    row, token = mask.nonzero()[0].tolist()
    ids[row, token] = 21
    error = raised(changed(place, action_ids=ids)(calls), InputError)
    first = calls[place].sharding.sequence_shard[0]
    assert lines(error) == [f"action_ids at [{first + row}, {token}]: expected an id in [0, 21), got 21"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"action_ids": torch.zeros(3, 7, dtype=torch.int64)},
            "action_ids: expected shape [24] or [3, 8], got shape",
        ),
        ({"old_logps": torch.zeros(3, 8, dtype=torch.int64)}, "old_logps: expected float32 or float16 or"),
        (
            {"policy_local_logits": torch.zeros(3, 8, 11)},
            "policy_logits: expected shape [24, 12] or [3, 8, 12], got",
        ),
        ({"policy_local_logits": torch.zeros(3, 8, 12).double()}, "policy_logits: expected float32, got float64"),
        ({"rewards": torch.zeros(3, 1)}, "rewards: expected shape [3], got shape [3, 1]"),
        ({"rewards": torch.full((3,), torch.inf)}, "rewards at [3]: expected a finite number of at most 1e+17"),
        ({"rewards": torch.full((3,), 1e18)}, "rewards at [3]: expected a finite number of at most 1e+17"),
        ({"completion_mask": torch.full((3, 8), 2)}, "completion_mask at [3, 0]: expected 0 or 1, got 2"),
        (
            {"old_logps": torch.full((3, 8), 1e300, dtype=torch.float64)},
            "old_logps at [3, 0]: expected a finite number, got 1e+300",
        ),
        ({"group_sizes": (None, 2)}, "tp_group: expected a group of 2 ranks, got no group"),
    ],
)
def test_every_rank_hears_of_a_bad_argument(fields: dict[str, Any], words: str) -> None:
    batch = replace(clean(), completion_mask=torch.ones(6, 8, dtype=torch.bool))
    error = raised(changed((0, 1), **fields)(calls_of(batch)), InputError)
    assert lines(error)[0].startswith(words), lines(error)


def test_only_some_slots_are_listed() -> None:
    batch = replace(clean(), action_ids=torch.full((6, 8), -1), completion_mask=torch.ones(6, 8, dtype=torch.bool))
    error = raised(calls_of(batch, 1, 1), InputError)
    assert lines(error)[-1] == "action_ids at 44 more slots: expected an id in [0, 21), got values like these"
    assert len(lines(error)) == 5


def test_a_sharding_of_another_batch_on_one_rank() -> None:
    batch = small()
    calls = calls_of(batch)
    bounds = {"sequence_shard_bounds": ((0, 3), (3, 5))}
    wrong = calls[0, 1].sharding.model_copy(update=bounds)
    error = raised(changed((0, 1), sharding=wrong)(calls), ShardingError)
    assert lines(error) == ["sharding.sequence_shard_bounds[1]: expected stop 6, got stop 5"]


def test_other_bounds_on_one_rank() -> None:
    batch = small()
    calls = calls_of(batch)
    uneven = calls[0, 0].sharding.model_copy(update={"vocab_shard_bounds": ((0, 14), (14, 24))})
    logits = batch.policy_logits[:3, :, :14]
    reference = batch.ref_logits[:3, :, :14] if batch.ref_logits is not None else None
    fields = {"sharding": uneven, "policy_local_logits": logits, "ref_local_logits": reference}
    error = raised(changed((0, 0), **fields)(calls), PreflightError)
    assert {problem.where.split(" on ")[0] for problem in error.problems} == {"sharding.vocab_shard_bounds"}


@pytest.mark.parametrize("degrees", [(4, 2), (2, 3)])
def test_a_rank_with_another_mesh_still_reaches_the_others(degrees: Place) -> None:
    """Its sharding says more ranks than its groups have: it must ask for what the groups can give."""
    batch = small()
    calls = calls_of(batch)
    stranger = layout_shardings(batch, *degrees)[0]
    call = replace(batch.shard(stranger), group_sizes=(2, 2))
    sizes = [request.sizes for request in asked(call)]
    assert sizes
    assert all(len(each) == 2 for each in sizes)
    error = raised(calls | {(0, 0): call}, InputError)
    axis, degree = ("tp", degrees[0]) if degrees[0] != 2 else ("dp", degrees[1])
    assert f"{axis}_group: expected a group of {degree} ranks, got a group of 2" in lines(error)


def asked(call: LossCall) -> list[Gather]:
    """What a lone rank asks for until it is given an answer of its own kind, twice."""
    program = checked_program(call, NATIVE_STAGES, Checks())
    first = next(program)
    second = program.send(Gathered([first.tensor, first.tensor]))
    assert isinstance(first, Gather)
    assert isinstance(second, Gather)
    return [first, second]


def test_two_ranks_in_one_place() -> None:
    calls = calls_of(small())
    error = raised(calls | {(1, 0): calls[0, 0]}, PreflightError)
    expected = "tp_rank 1, dp_rank 0"
    assert any(f"expected {expected}, got tp_rank 0, dp_rank 0" in line for line in lines(error))


def test_another_backend_on_one_rank() -> None:
    batch = small()
    made = {
        place: checked_program(call, NATIVE_STAGES, Checks(backend="other" if place == (1, 1) else "native"))
        for place, call in calls_of(batch).items()
    }
    found = errors_of_all(made)
    words = "backend on rank (tp 1, dp 1): expected native as on rank (tp 0, dp 0), got other"
    assert {str(error) for error, _ in found.values()} == {f"preflight: ranks disagree: {words}"}


def test_another_grad_scale_on_one_rank() -> None:
    made = {
        place: checked_program(call, NATIVE_STAGES, Checks(), grad_scale=2.0 if place == (1, 0) else 1.0)
        for place, call in calls_of(small()).items()
    }
    found = errors_of_all(made)
    words = "grad_scale on rank (tp 1, dp 0): expected 1.0 as on rank (tp 0, dp 0), got 2.0"
    assert {str(error) for error, _ in found.values()} == {f"preflight: ranks disagree: {words}"}


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (True, 1.0), (0.0, -0.0), (2.0, torch.tensor(2.0))])
def test_grad_scales_that_are_equal(one: Any, other: Any) -> None:
    made = {
        place: checked_program(call, NATIVE_STAGES, Checks(), grad_scale=other if place == (1, 0) else one)
        for place, call in calls_of(small()).items()
    }
    assert set(run_virtual(made)) == set(PLACES)


def test_another_zero_in_the_contract_is_named() -> None:
    """Summaries and records compare the same text: where one differs, so does the other."""
    calls = calls_of(with_contract(small(), objective={"clip_eps_low": 0.0}))
    other = calls[1, 1].contract
    minus = other.model_copy(update={"objective": other.objective.model_copy(update={"clip_eps_low": -0.0})})
    (line,) = lines(raised(changed((1, 1), contract=minus)(calls), PreflightError))
    assert line == "objective.clip_eps_low on rank (tp 1, dp 1): expected 0.0 as on rank (tp 0, dp 0), got -0.0"


@pytest.mark.parametrize("place", PLACES)
def test_values_checked_on_one_rank_only(place: Place) -> None:
    made = {
        each: checked_program(call, NATIVE_STAGES, Checks("off" if each == place else "full"))
        for each, call in calls_of(small()).items()
    }
    found = errors_of_all(made)
    assert {type(error) for error, _ in found.values()} == {PreflightError}
    assert {problem.where.split(" on ")[0] for problem in found[0, 0][0].problems} == {"validate"}


@pytest.mark.parametrize("name", ["policy_local_logits", "action_ids", "old_logps", "rewards"])
@pytest.mark.parametrize("value", [None, [1.0, 2.0]])
def test_an_argument_that_is_no_tensor(name: str, value: Any) -> None:
    error = raised(changed((1, 0), **{name: value})(calls_of(small())), InputError)
    shown = "policy_logits" if name == "policy_local_logits" else name
    assert lines(error) == [f"{shown}: expected a tensor, got {type(value).__name__}"]


@pytest.mark.parametrize("name", ["ref_local_logits", "completion_mask"])
def test_an_optional_argument_that_is_no_tensor(name: str) -> None:
    error = raised(changed((1, 0), **{name: [1]})(calls_of(small())), InputError)
    shown = "ref_logits" if name == "ref_local_logits" else name
    assert lines(error) == [f"{shown}: expected a tensor, got list"]


class Watched(DistributedGRPOLossOp):
    """Keeps the checks and the scale of every call."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Checks, float]] = []

    def _program(self, call: LossCall, checks: Checks, grad_scale: float, observe: Any) -> Program[Any]:
        self.seen.append((checks, grad_scale))
        return super()._program(call, checks, grad_scale, observe)

    def call(self, batch: GlobalBatch, **options: Any) -> None:
        self.apply(
            batch.policy_logits, batch.action_ids, batch.old_logps, batch.rewards, contract=batch.contract,
            completion_mask=batch.completion_mask, ref_local_logits=batch.ref_logits, **options,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preflight": "alway"}, "preflight: expected always or once or off, got 'alway'"),
        ({"validate": "ful"}, "validate: expected full or off, got 'ful'"),
        ({"grad_scale": "two"}, "grad_scale: expected a finite number, got 'two'"),
        ({"grad_scale": float("inf")}, "grad_scale: expected a finite number, got inf"),
    ],
)
def test_a_bad_option_travels_through_preflight(options: dict[str, Any], words: str) -> None:
    op = Watched()
    with pytest.raises(InputError) as caught:
        op.call(small(), **options)
    assert lines(caught.value) == [words]
    ((checks, scale),) = op.seen
    assert checks.preflight
    calls = calls_of(small())
    made = {
        place: checked_program(
            call,
            NATIVE_STAGES,
            checks if place == (1, 1) else Checks(),
            grad_scale=scale if place == (1, 1) else 1.0,
        )
        for place, call in calls.items()
    }
    assert {tuple(lines(error)) for error, _ in errors_of_all(made).values()} == {(words,)}


@pytest.mark.parametrize("value", [1, True, torch.tensor(1.0)])
def test_the_op_takes_a_grad_scale_as_a_float(value: Any) -> None:
    op = Watched()
    op.call(small(), grad_scale=value)
    assert [repr(scale) for _, scale in op.seen] == ["1.0"]


def test_once_is_once_for_each_contract() -> None:
    op, batch = Watched(), small()
    other = with_contract(batch, objective={"beta": 0.05})
    rebuilt = replace(batch, contract=GRPOLossContract(**batch.contract.model_dump()))
    for held, how in [
        (batch, "off"), (batch, "once"), (batch, "once"), (rebuilt, "once"), (other, "once"), (batch, "once"),
        (other, "once"),
    ]:  # fmt: skip
        op.call(held, preflight=how)
    assert [checks.preflight for checks, _ in op.seen] == [False, True, False, False, True, False, False]


def test_what_once_remembers_is_bounded() -> None:
    agreed = OrderedDict[str, None]()
    for number in range(KEPT + 5):
        _remember(agreed, str(number))
    assert len(agreed) == KEPT
    assert str(KEPT + 4) in agreed


def test_a_problem_outweighs_a_disagreement() -> None:
    batch = small()
    calls = calls_of(batch)
    other = with_contract(batch, objective={"beta": 0.05}).contract
    calls = changed((0, 1), contract=other)(changed((1, 1), rewards=torch.zeros(2))(calls))
    assert lines(raised(calls, InputError)) == ["rewards: expected shape [3], got shape [2]"]


def test_problems_of_several_ranks_come_together() -> None:
    calls = calls_of(small())
    calls = changed((0, 1), rewards=torch.zeros(2))(changed((1, 0), action_ids=torch.zeros(1).long())(calls))
    found = {problem.where for problem in raised(calls, InputError).problems}
    assert found == {"rewards", "action_ids"}


# After the gather


@pytest.mark.parametrize("sequence", [0, 4])
def test_what_shows_only_later_is_raised_by_all(sequence: int) -> None:
    """A k3 penalty that overflows is known to one DP rank, and travels with the sequence totals."""
    batch = clean()
    assert batch.ref_logits is not None
    token = int(batch.completion_mask[sequence].nonzero()[0])
    reference = batch.ref_logits.clone()
    reference[sequence, token] = -200.0
    reference[sequence, token, batch.action_ids[sequence, token]] = 0.0
    policy = batch.policy_logits.clone()
    policy[sequence, token] = 0.0
    policy[sequence, token, batch.action_ids[sequence, token]] = -150.0
    old = batch.old_logps.clone()
    old[sequence, token] = -150.0
    wrong = replace(batch, ref_logits=reference, policy_logits=policy, old_logps=old)
    found = errors_of_all(programs(calls_of(wrong)))
    words = f"kl at [{sequence}, {token}]: expected a finite float32 value, got a non-finite one"
    assert {str(error) for error, _ in found.values()} == {f"invalid input: {words}"}
    assert {type(error) for error, _ in found.values()} == {InputError}


@pytest.mark.parametrize(
    ("value", "name"), [(torch.nan, "policy log-probability"), (torch.inf, "policy log-probability")]
)
def test_logits_that_are_not_finite(value: float, name: str) -> None:
    batch = clean()
    sequence, token = batch.completion_mask.nonzero()[-1].tolist()
    batch.policy_logits[sequence, token, 20] = value
    found = errors_of_all(programs(calls_of(batch)))
    assert {lines(error)[0].split(":")[0] for error, _ in found.values()} == {f"{name} at [{sequence}, {token}]"}


def test_no_active_token_on_any_rank() -> None:
    batch = replace(clean(), completion_mask=torch.zeros(6, 8, dtype=torch.bool))
    found = errors_of_all(programs(calls_of(batch)))
    words = "completion_mask: expected an active token in the batch, got no active tokens"
    assert {str(error) for error, _ in found.values()} == {f"invalid input: {words}"}


# What is asked for


def test_validate_off_reads_no_values() -> None:
    batch = clean()
    batch.old_logps[tuple(batch.completion_mask.nonzero()[0])] = torch.nan
    with pytest.raises(InputError, match="old_logps at"):
        run_layout(batch, 2, 2)
    outcome = run_layout(batch, 2, 2, checks=Checks("off"))
    assert outcome.results[0, 0].loss.isnan()
    narrow = replace(batch, rewards=batch.rewards[:5])
    with pytest.raises(InputError, match="rewards: expected shape"):
        run_layout(narrow, 2, 2, checks=Checks("off"))


def test_without_preflight_a_rank_raises_alone_and_at_once() -> None:
    call = replace(calls_of(small(), 1, 1)[0, 0], rewards=torch.zeros(2))
    program = checked_program(call, NATIVE_STAGES, Checks(preflight=False))
    with pytest.raises(InputError, match=r"rewards: expected shape \[6\], got shape \[2\]"):
        next(program)


def test_without_preflight_nothing_else_changes() -> None:
    batch = small()
    first = next(programs(calls_of(batch), Checks(preflight=False))[0, 0])
    assert first.purpose == "rewards"
    quiet = run_layout(batch, 2, 2, checks=Checks(preflight=False))
    assert torch.equal(quiet.results[1, 1].loss, run_layout(batch, 2, 2).results[1, 1].loss)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"checks": Checks("of")}, "validate: expected full or off, got 'of'"),  # type: ignore[arg-type]
        ({"checks": Checks(), "grad_scale": float("nan")}, "grad_scale: expected a finite number, got nan"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], words: str) -> None:
    call = calls_of(small(), 1, 1)[0, 0]
    program = checked_program(call, NATIVE_STAGES, **options)
    with pytest.raises(InputError) as caught:
        run_virtual({(0, 0): program})
    assert lines(caught.value) == [words]


def test_a_contract_with_a_foreign_token_count() -> None:
    batch = small()
    stated = with_contract(batch, logprob={"num_tokens": 23}).contract
    assert isinstance(stated, GRPOLossContract)
    error_calls = changed((1, 1), contract=stated)(calls_of(batch))
    found = errors_of_all(programs(error_calls))
    assert all(isinstance(error, LogprobContractError) for error, _ in found.values())
    assert {lines(error)[0] for error, _ in found.values()} == {
        "logprob.num_tokens: expected 24 (owned sequences (3, 6) x 8 slots), got 23"
    }
