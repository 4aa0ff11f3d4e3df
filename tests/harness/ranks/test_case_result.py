"""Ranks' reports joined to one case: counts, the first element, patterns, and what a planted fault must show."""

import math
from typing import Any

import pytest
import torch

from harness.comparing.comparison import compare
from harness.comparing.drift import Drift
from harness.planning.planned import PlannedCase
from harness.ranks.case_result import case_result
from harness.ranks.rank_outcome import RankOutcome
from reports import CaseResult, Expect, QuantityResult, Verdict
from reports.cases import Rank

GRADIENT = "grad_policy_logits"


def planned(**changes: Any) -> PlannedCase:
    fields = {"index": 0, "name": "seed/s0/2x2", "op": "grpo_loss", "layout": (2, 2), "batch": "seed", "seed": 0}
    return PlannedCase(**(fields | {"repeat": 1} | changes))


def outcome(tp: int, dp: int, *drifts: Drift, **fields: Any) -> RankOutcome:
    return RankOutcome(tp_rank=tp, dp_rank=dp, drifts=drifts, **fields)


def joined(*outcomes: RankOutcome, **options: Any) -> CaseResult:
    case = options.pop("case", planned())
    return case_result(case, outcomes, transport="gloo", **options)


def only(result: CaseResult) -> QuantityResult:
    (quantity,) = result.quantities
    return quantity


def matched(name: str = "loss", elements: int = 1, **fields: Any) -> Drift:
    return Drift(name=name, elements=elements, nonzero=fields.pop("nonzero", elements), **fields)


def vector(*changes: tuple[int, float]) -> Drift:
    """A whole vector of four sequences, different where told."""
    expected = torch.tensor([1.0, 2.0, 4.0, 8.0])
    got = expected.clone()
    for index, value in changes:
        got[index] = value
    return compare("per_sequence_policy", expected, got)


def part(origin: tuple[int, int, int], factor: float = 1.0, *, only_first: bool = False) -> Drift:
    """One rank's [1, 2, 2] shard of a gradient, multiplied by `factor`."""
    expected = torch.tensor([[[1.0, -2.0], [3.0, 0.0]]])
    got = expected * factor
    if only_first:
        got[0, 0, 1:], got[0, 1] = expected[0, 0, 1:], expected[0, 1]
    return compare(GRADIENT, expected, got, origin, sharded=True)


ORIGINS = [((t, d), (d, 0, 2 * t)) for d in range(2) for t in range(2)]


def shards(factor: float = 1.0) -> list[RankOutcome]:
    return [outcome(*place, part(origin, factor)) for place, origin in ORIGINS]


def test_a_replicated_quantity_is_counted_once() -> None:
    result = joined(*(outcome(t, d, vector()) for t in range(2) for d in range(2)))
    assert (result.verdict, result.reason) == (Verdict.MATCH, None)
    quantity = only(result)
    assert (quantity.verdict, quantity.elements, quantity.mismatched) == (Verdict.MATCH, 4, 0)
    assert quantity.nonzero_share == 1.0


def test_shards_add_up() -> None:
    quantity = only(joined(*shards()))
    assert (quantity.verdict, quantity.elements, quantity.nonzero_share) == (Verdict.MATCH, 16, 0.75)
    quantity = only(joined(*shards(1.5)))
    assert (quantity.verdict, quantity.elements, quantity.mismatched) == (Verdict.DRIFT, 16, 12)
    assert quantity.sequences == (0, 1)


def test_shards_that_several_ranks_hold_are_counted_once() -> None:
    twice = [*shards(1.5), *shards(1.5)]
    assert (only(joined(*twice)).elements, only(joined(*twice)).mismatched) == (16, 12)


def test_the_worst_rank_of_a_replicated_quantity_counts() -> None:
    ranks = [outcome(0, 0, vector()), outcome(1, 0, vector((2, 5.0))), outcome(0, 1, vector((1, 3.0), (3, 8.5)))]
    result = joined(*ranks, outcome(1, 1, vector()))
    assert result.verdict is Verdict.DRIFT
    quantity = only(result)
    assert (quantity.mismatched, quantity.max_abs, quantity.sequences) == (2, 1.0, (1, 2, 3))
    assert quantity.first is not None
    assert (quantity.first.sequence, quantity.first.token, quantity.first.owner) == (1, None, Rank(tp=0, dp=1))
    assert (quantity.first.expected, quantity.first.got) == ("2.0", "3.0")
    assert (quantity.first.expected_bits, quantity.first.got_bits) == ("0x40000000", "0x40400000")


def test_the_first_element_is_first_in_the_whole_batch() -> None:
    ranks = [outcome(*place, part(origin)) for place, origin in ORIGINS]
    ranks[3] = outcome(1, 1, part((1, 0, 2), 2.0))
    ranks[2] = outcome(0, 1, part((1, 0, 0), 2.0, only_first=True))
    quantity = only(joined(*ranks))
    assert quantity.first is not None
    assert (quantity.first.sequence, quantity.first.token, quantity.first.column) == (1, 0, 0)
    assert quantity.first.owner == Rank(tp=0, dp=1)
    assert quantity.mismatched == 4


def test_a_number_has_no_sequence() -> None:
    drift = compare("loss", torch.tensor(1.0), torch.tensor(1.25))
    first = only(joined(outcome(0, 0, drift))).first
    assert first is not None
    assert (first.sequence, first.token, first.column) == (None, None, None)
    counts = compare("clip_counts", torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 4, 4]))
    first = only(joined(outcome(0, 0, counts))).first
    assert first is not None
    assert first.sequence is None


def test_not_a_number_is_kept() -> None:
    quantity = only(joined(outcome(0, 0, vector((0, 1.5))), outcome(0, 1, vector((1, math.nan)))))
    assert math.isnan(quantity.max_abs)


def test_another_shape_on_one_rank_is_a_drift() -> None:
    odd = compare("per_sequence_policy", torch.zeros(4), torch.zeros(5))
    quantity = only(joined(outcome(0, 0, vector()), outcome(0, 1, odd)))
    assert quantity.verdict is Verdict.DRIFT
    assert 4 <= quantity.mismatched <= quantity.elements
    assert quantity.first is not None
    assert (quantity.first.expected, quantity.first.got) == ("[4] float32", "[5] float32")


# Power


def test_zeros_have_no_power() -> None:
    quantity = only(joined(outcome(0, 0, matched("kl", 1, nonzero=0))))
    assert (quantity.verdict, quantity.power) == (Verdict.INCONCLUSIVE, 0.0)
    assert (
        only(joined(outcome(0, 0, matched("clip_counts", 4, nonzero=0, floating=False)))).verdict is Verdict.MATCH
    )


def test_a_shard_of_zeros_beside_others_is_no_zero_quantity() -> None:
    ranks = [outcome(*place, matched(GRADIENT, 4, nonzero=k, shard=o)) for k, (place, o) in enumerate(ORIGINS)]
    assert only(joined(*ranks)).verdict is Verdict.MATCH


def test_a_case_that_compared_nothing_is_no_match() -> None:
    assert joined(outcome(0, 0)).settled().verdict is Verdict.INCONCLUSIVE
    powerless = joined(outcome(0, 0, matched("kl", 1, nonzero=0)))
    assert powerless.settled().verdict is Verdict.INCONCLUSIVE
    assert joined(outcome(0, 0, matched("kl", 1, nonzero=0), matched("loss"))).settled().verdict is Verdict.MATCH


def test_equal_counts_beside_nothing_but_zeros_are_no_match() -> None:
    counts, zeros = matched("clip_counts", 4, floating=False), matched("kl", 1, nonzero=0)
    result = joined(outcome(0, 0, counts, zeros))
    assert result.settled().verdict is Verdict.INCONCLUSIVE
    assert result.reason == "no floating quantity could have shown a difference on this batch"
    assert joined(outcome(0, 0, counts, zeros, matched("loss"))).settled().verdict is Verdict.MATCH
    assert judged(outcome(0, 0, counts, zeros), must_show=("kl",))[0] is Verdict.MISSED


def test_measured_power_of_zero_is_no_match_either() -> None:
    ranks = [outcome(0, 0, matched("loss"), matched("kl"))]
    assert joined(*ranks, power={"loss": 0.0, "kl": 0.0}).settled().verdict is Verdict.INCONCLUSIVE
    result = joined(*ranks, power={"loss": 0.0, "kl": 0.5})
    assert [each.verdict for each in result.quantities] == [Verdict.INCONCLUSIVE, Verdict.MATCH]
    assert result.settled().verdict is Verdict.MATCH


def test_zeros_that_become_something_are_a_drift() -> None:
    drift = compare("kl", torch.tensor(0.0), torch.tensor(1e-9))
    assert only(joined(outcome(0, 0, drift))).verdict is Verdict.DRIFT


# Errors


def test_an_error_of_all_ranks_is_said_once() -> None:
    error = ("input", "invalid input: no active tokens")
    result = joined(*(outcome(t, d, error=error) for t in range(2) for d in range(2)))
    assert (result.verdict, result.reason) == (Verdict.REFUSED, error[1])


def test_an_error_of_one_rank_is_told_as_such() -> None:
    result = joined(outcome(0, 0), outcome(1, 0, error=("input", "bad id")))
    assert (result.verdict, result.reason) == (Verdict.REFUSED, "1 of 2 ranks: bad id")
    result = joined(outcome(0, 0, error=("input", "one")), outcome(1, 0, error=("input", "two")))
    assert result.reason == "2 of 2 ranks: one | two"


def test_a_fault_without_a_seed_is_inconclusive() -> None:
    case = planned(expect="caught", fault="bf16_token_sum")
    result = joined(outcome(0, 0, inconclusive="no seed"), case=case, must_show=("loss",))
    assert (result.verdict, result.reason) == (Verdict.INCONCLUSIVE, "no seed")


# Planted faults


def judged(*outcomes: RankOutcome, **options: Any) -> tuple[Verdict, str | None]:
    case = planned(expect="caught", fault="some")
    result = joined(*outcomes, case=case, **options).settled()
    assert result.expect is Expect.CAUGHT
    return result.verdict, result.reason


def test_a_fault_must_show_in_a_quantity_it_names() -> None:
    seen = outcome(0, 0, vector((1, 3.0)), matched("loss"))
    verdict, reason = judged(seen, must_show=("per_sequence_policy", "loss"))
    assert (verdict, reason) == (Verdict.CAUGHT, "seen in per_sequence_policy")
    verdict, reason = judged(seen, must_show=("loss",))
    assert (verdict, reason) == (Verdict.MISSED, "none of loss drifted, which this fault must move")


def test_a_fault_that_moves_nothing_is_missed() -> None:
    assert judged(outcome(0, 0, vector()), must_show=("per_sequence_policy",))[0] is Verdict.MISSED


def test_a_fault_must_look_as_it_should() -> None:
    options: dict[str, Any] = {"must_show": (GRADIENT,), "pattern": "constant factor 2"}
    assert judged(*shards(2.0), **options)[0] is Verdict.CAUGHT
    verdict, reason = judged(*shards(3.0), **options)
    assert verdict is Verdict.MISSED
    assert reason is not None
    assert "not as 'constant factor 2'" in reason


# Patterns


@pytest.mark.parametrize(("factor", "pattern"), [(2.0, "constant factor 2"), (0.5, "constant factor 0.5")])
def test_a_constant_factor(factor: float, pattern: str) -> None:
    assert only(joined(*shards(factor))).pattern == pattern


def test_a_factor_must_hold_on_every_shard() -> None:
    factors = zip((2.0, 2.0, 2.0, 3.0), ORIGINS, strict=True)
    mixed = [outcome(*place, part(origin, factor)) for factor, (place, origin) in factors]
    assert "constant factor" not in str(only(joined(*mixed)).pattern)


def test_zeros_where_values_are_expected() -> None:
    assert only(joined(*shards(0.0))).pattern == "zero where a value is expected"
    # The zero of the baseline became -0: bits differ there, and no value was lost.
    negated = compare(GRADIENT, torch.tensor([[[0.0]]]), torch.tensor([[[-0.0]]]), (0, 0, 0), sharded=True)
    assert only(joined(outcome(0, 0, negated))).pattern != "zero where a value is expected"


def test_rounding_is_no_factor() -> None:
    assert only(joined(*shards(1 + 2.0**-20))).pattern == "rounding only"
