"""The guarantees, each with a check that holds for the good op and fails on a planted violation of it."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_contract import ContractError, GRPOLossContract, ShardingSpec
from harness.planning.planned import PlannedCase
from harness.ranks.case_result import case_result
from harness.ranks.environment import environment
from harness.ranks.rank_outcome import RankOutcome
from harness.ranks.virtual_run import run_virtual_case
from harness.settings.batch_spec import CONTROL
from loss_ops.batch import GlobalBatch
from loss_ops.controls import faulty_op
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.faults import FAULTS
from loss_ops.stages import NATIVE_STAGES, Stages
from loss_ops.trees import fold_sum
from loss_ops.virtual_layout import run_layout
from reports import CaseResult, Expect, Report, ReportVerdict, Verdict
from support.batches import drawn, layout_differences, small, small_spec
from support.bits import differing

LAYOUTS = [(2, 1), (1, 2), (2, 2), (3, 1), (1, 3), (4, 1), (1, 4), (1, 8)]
LAYOUT_FAULTS = [fault.name for fault in FAULTS if fault.kind == "layout"]
GOOD = DistributedGRPOLossOp()


def op_with(**stages: Any) -> DistributedGRPOLossOp:
    """The good op with other stages."""
    return DistributedGRPOLossOp(replace(NATIVE_STAGES, **stages))


# 1. Every layout gives the same bits


def same_bits_at_every_layout(op: DistributedGRPOLossOp) -> bool:
    """Over some seeds of the control batch; `all_reduce` of more than two addends has no virtual form."""
    two_at_most = [layout for layout in LAYOUTS if "all_reduced" not in op.backend or max(layout) <= 2]
    for seed in range(3):
        batch = drawn(CONTROL, seed)
        baseline = run_layout(batch, 1, 1, op=op)
        if layout_differences(batch, two_at_most, baseline, op=op):
            return False
    return True


def test_the_good_op_has_the_same_bits_at_every_layout() -> None:
    assert same_bits_at_every_layout(GOOD)


@pytest.mark.parametrize("name", LAYOUT_FAULTS)
def test_a_layout_fault_has_not(name: str) -> None:
    assert not same_bits_at_every_layout(faulty_op(name))


def padding_is_free(op: DistributedGRPOLossOp) -> bool:
    """Whether the same sequences in 32 and in 57 slots give the same bits."""
    short = drawn(small_spec(padded_seq_len=32, raggedness="staggered"), 1)
    long = in_more_slots(short, 25)
    expected, got = (run_layout(batch, 1, 1, op=op).quantities() for batch in (short, long))
    got["grad_policy_logits"] = got["grad_policy_logits"][:, :32].contiguous()
    return differing(expected, got) == {}


def in_more_slots(batch: GlobalBatch, more: int) -> GlobalBatch:
    def grown(held: Tensor) -> Tensor:
        return torch.cat((held, torch.zeros(len(held), more, *held.shape[2:], dtype=held.dtype)), 1)

    assert batch.ref_logits is not None
    content = batch.contract.model_dump()
    content["geometry"]["padded_seq_len"] += more
    slots = (grown(batch.action_ids), grown(batch.old_logps), batch.rewards, grown(batch.completion_mask))
    contract = GRPOLossContract(**content)
    return GlobalBatch(grown(batch.policy_logits), grown(batch.ref_logits), *slots, contract)


def test_longer_padding_changes_no_bit() -> None:
    assert padding_is_free(GOOD)


def test_a_tree_over_halves_of_the_padded_length_does() -> None:
    def by_halves(terms_ST: Tensor, active_ST: Tensor, _inputs: object) -> Tensor:
        clean = torch.where(active_ST, terms_ST, 0.0) + 0.0
        return fold_sum(torch.stack([fold_sum(half, 1) for half in clean.tensor_split(2, dim=1)]), 0)

    assert not padding_is_free(op_with(token_sum=by_halves))


def masked_slots_are_free(op: DistributedGRPOLossOp) -> bool:
    """Whether masked slots may hold garbage: the ragged batch is full of it."""
    batch = small(2)
    masked = ~batch.completion_mask
    assert batch.ref_logits is not None
    clean = replace(
        batch,
        policy_logits=batch.policy_logits.masked_fill(masked[..., None], 0.0),
        ref_logits=batch.ref_logits.masked_fill(masked[..., None], 0.0),
        old_logps=batch.old_logps.masked_fill(masked, 0.0),
    )
    return differing(*(run_layout(each, 1, 1, op=op).quantities() for each in (batch, clean))) == {}


def test_masked_slots_change_no_bit() -> None:
    assert masked_slots_are_free(GOOD)


def test_a_mask_that_multiplies_lets_them_through() -> None:
    def multiplied(terms_ST: Tensor, active_ST: Tensor, inputs: Any) -> Tensor:
        return fold_sum((terms_ST + 0 * inputs.old_logps_ST) * active_ST, 1)

    assert not masked_slots_are_free(op_with(token_sum=multiplied))


# 2. Runs repeat


def runs_repeat(op: DistributedGRPOLossOp) -> bool:
    batch = drawn(CONTROL, 0)
    for layout in ((1, 1), (2, 2)):
        first, again = (run_layout(batch, *layout, op=op) for _ in range(2))
        if any(differing(first.quantities(place), again.quantities(place)) for place in first.results):
            return False
    return True


def test_runs_repeat() -> None:
    assert runs_repeat(GOOD)


def test_an_order_that_changes_from_run_to_run_does_not() -> None:
    calls = itertools.count()

    def wandering(terms_ST: Tensor, active_ST: Tensor, _inputs: object) -> Tensor:
        clean = torch.where(active_ST, terms_ST, 0.0) + 0.0
        order = torch.randperm(clean.shape[1], generator=torch.Generator().manual_seed(next(calls)))
        return fold_sum(clean[:, order], 1)

    assert not runs_repeat(op_with(token_sum=wandering))


# 3. What is not promised is kept apart


def test_what_fixes_the_numbers_is_part_of_the_identity() -> None:
    contract = drawn(CONTROL, 0).contract
    launched = {contract.numeric_fingerprint(launch) for launch in (None, {"num_warps": 4}, {"num_warps": 8})}
    assert len(launched) == 3
    tiles = contract.model_dump()
    tiles["logprob"]["num_vocab_tiles"] = 8
    assert GRPOLossContract(**tiles).numeric_fingerprint() not in launched


def test_the_arithmetic_is_named_and_no_other_is_accepted() -> None:
    content = drawn(CONTROL, 0).contract.model_dump()
    assert content["math"] == "device"
    with pytest.raises(ContractError, match="math: expected 'device', got portable"):
        GRPOLossContract(**content | {"math": "portable"})


def test_a_run_records_what_it_depends_on() -> None:
    held = environment(torch.device("cpu"))
    assert held["torch"] == torch.__version__
    assert all(held[name] for name in ("device", "device_name", "python", "num_threads"))


@pytest.mark.parametrize("name", ["totals_added_in_ring_order", "tiles_joined_in_reverse"])
def test_two_ranks_cannot_show_an_order(name: str) -> None:
    """Why degrees of 3 are run: with two ranks these faults match everywhere, with three they do not."""
    op, batches = faulty_op(name), [drawn(CONTROL, seed) for seed in range(6)]
    fault = next(fault for fault in FAULTS if fault.name == name)
    two = tuple(min(degree, 2) for degree in fault.layout)
    assert all(not layout_differences(batch, [(two[0], two[1])], op=op) for batch in batches)
    assert any(layout_differences(batch, [fault.layout], op=op) for batch in batches)


# 4. A green report means something


def case_of(op: DistributedGRPOLossOp, batch: GlobalBatch, layout: tuple[int, int], **fields: Any) -> CaseResult:
    """One case, as the command judges it."""
    expected = run_layout(batch, 1, 1, op=op).quantities()
    outcomes = run_virtual_case(op, batch, layout, expected)
    return judged(outcomes, layout, **fields)


def judged(outcomes: list[RankOutcome], layout: tuple[int, int] = (1, 2), **fields: Any) -> CaseResult:
    must_show = fields.pop("must_show", ())
    plain = {"index": 0, "name": "case", "op": "grpo_loss", "batch": "control", "seed": 0, "repeat": 1}
    case = PlannedCase(**(plain | {"layout": layout} | fields))
    return case_result(case, outcomes, transport="virtual", must_show=must_show)


def good_case() -> CaseResult:
    return case_of(GOOD, drawn(CONTROL, 0), (1, 2))


def planted_case(name: str = "bf16_token_sum") -> CaseResult:
    """A planted fault that the comparison sees."""
    batch = drawn(CONTROL, 0)
    fault = next(fault for fault in FAULTS if fault.name == name)
    outcomes = run_virtual_case(faulty_op(name), batch, fault.layout, run_layout(batch, 1, 1).quantities())
    return judged(outcomes, fault.layout, expect="caught", fault=name, must_show=fault.quantities)


def test_a_green_report() -> None:
    report = Report.assemble(cases=[good_case(), planted_case()])
    assert (report.verdict, report.exit_status) == (ReportVerdict.MATCH, 0)
    assert (report.planted.caught, report.planted.total) == (1, 1)


def zero_advantages() -> CaseResult:
    """Nothing but zeros: equal rewards, no KL."""
    batch = drawn(CONTROL, 0, beta=0.0)
    silent = replace(batch, rewards=torch.ones(8), ref_logits=None)
    return case_of(GOOD, silent, (1, 2))


def negative_zero() -> CaseResult:
    def flipped(rewards_B: Tensor, inputs: Any) -> Tensor:
        good = NATIVE_STAGES.advantages(rewards_B, inputs)
        return torch.where(good == 0, -good, good) if inputs.sharding.dp_degree > 1 else good

    batch = replace(drawn(CONTROL, 0), rewards=torch.tensor([1.0, 1, 1, 0, 1, 2, 3, 4]))
    return case_of(op_with(advantages=flipped), batch, (1, 2))


def unseen_fault() -> CaseResult:
    batch = drawn(CONTROL, 0)
    outcomes = run_virtual_case(GOOD, batch, (1, 2), run_layout(batch, 1, 1).quantities())
    return judged(outcomes, expect="caught", fault="bf16_token_sum", must_show=("per_sequence_policy",))


def unnamed_fault() -> CaseResult:
    """The fault shows, but in nothing that it names."""
    batch = drawn(CONTROL, 0)
    outcomes = run_virtual_case(faulty_op("bf16_token_sum"), batch, (1, 1), run_layout(batch, 1, 1).quantities())
    return judged(outcomes, (1, 1), expect="caught", fault="bf16_token_sum", must_show=("advantages",))


def fault_without_a_seed() -> CaseResult:
    return judged([RankOutcome(tp_rank=0, dp_rank=0, inconclusive="no seed")], expect="caught", fault="x")


def nothing_compared() -> CaseResult:
    return judged([RankOutcome(tp_rank=0, dp_rank=0)])


def skipped() -> CaseResult:
    return good_case().model_copy(update={"verdict": Verdict.SKIPPED, "reason": "too few devices"})


def refused() -> CaseResult:
    return judged([RankOutcome(tp_rank=0, dp_rank=0, error=("input", "no active tokens"))])


VIOLATIONS: list[tuple[Callable[[], CaseResult], bool, ReportVerdict, int]] = [
    # (the case, whether a good one stands beside it, verdict, exit status)
    (zero_advantages, False, ReportVerdict.INCONCLUSIVE, 3),
    (zero_advantages, True, ReportVerdict.INCONCLUSIVE, 3),
    (nothing_compared, False, ReportVerdict.INCONCLUSIVE, 3),
    (nothing_compared, True, ReportVerdict.INCONCLUSIVE, 3),
    (skipped, False, ReportVerdict.INCONCLUSIVE, 3),
    (planted_case, False, ReportVerdict.INCONCLUSIVE, 3),
    (fault_without_a_seed, True, ReportVerdict.INCONCLUSIVE, 3),
    (negative_zero, True, ReportVerdict.DRIFT, 1),
    (unseen_fault, True, ReportVerdict.MISSED, 1),
    (unnamed_fault, True, ReportVerdict.MISSED, 1),
    (refused, True, ReportVerdict.REFUSED, 2),
]


@pytest.mark.parametrize(
    ("case", "beside_good", "verdict", "status"),
    VIOLATIONS,
    ids=[f"{case.__name__}{' beside good' if beside else ''}" for case, beside, *_ in VIOLATIONS],
)
def test_what_is_not_green(
    case: Callable[[], CaseResult], beside_good: bool, verdict: ReportVerdict, status: int
) -> None:
    cases = [case(), *([good_case()] if beside_good else [])]
    report = Report.assemble(cases=cases)
    assert (report.verdict, report.exit_status) == (verdict, status)


def test_some_skipped_beside_some_matched_is_green() -> None:
    report = Report.assemble(cases=[skipped(), good_case(), planted_case()])
    assert report.exit_status == 0
    assert {case.verdict for case in report.cases} == {Verdict.SKIPPED, Verdict.MATCH, Verdict.CAUGHT}


def test_a_drift_is_located() -> None:
    """What a violation of the first guarantee looks like in a report: where, how far, and whose."""
    report = Report.assemble(cases=[case_of(faulty_op("gradient_zero_off_owner"), drawn(CONTROL, 0), (2, 1))])
    (case,) = report.cases
    assert (case.expect, case.verdict, report.exit_status) == (Expect.MATCH, Verdict.DRIFT, 1)
    (drifted,) = case.drifted
    assert drifted.name == "grad_policy_logits"
    first = drifted.first
    assert first is not None
    batch = drawn(CONTROL, 0)
    bounds = ShardingSpec.even(2, 1, contract=batch.contract).vocab_shard_bounds
    assert (first.sequence, first.token) == (0, 0)
    assert first.owner is not None
    assert first.column == bounds[first.owner.tp][0]
    action = int(batch.action_ids[0, 0])
    assert not bounds[first.owner.tp][0] <= action < bounds[first.owner.tp][1]
    assert first.got == "0.0"
    assert drifted.pattern is not None


def test_stages_are_the_good_ones() -> None:
    """The violations above change one stage each; what they leave alone is what the good op runs."""
    changed = op_with(token_sum=lambda *_: None).stages
    names = [name for name in vars(changed) if getattr(changed, name) is not getattr(Stages(), name)]
    assert names == ["token_sum"]
