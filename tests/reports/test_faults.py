"""Planted faults and the head of a terminal report."""

from collections.abc import Callable

import pytest

from reports import CaseResult, QuantityResult, Report, render
from reports.facts import facts

Maker = Callable[..., CaseResult]


def drawn(report: Report, width: int) -> list[str]:
    return [" ".join(line.split()) for line in render(report, "terminal", width=width).splitlines()]


@pytest.mark.parametrize("width", [60, 100])
def test_each_fault_names_what_showed_it(make_case: Maker, width: int) -> None:
    moved = tuple(QuantityResult(name=name, verdict="drift", elements=1, mismatched=1) for name in ("loss", "kl"))
    cases = [
        make_case(),
        make_case("drift", "caught", name="fault/rank_local_normalizer/1x2", dp=2, tp=1, reason="seen in loss"),
        make_case("drift", "caught", name="tokens_regrouped", quantities=moved),
        make_case("refused", "refused", name="fault/beta_differs/2x1", tp=2, dp=1, reason="a long story"),
    ]
    lines = drawn(Report.assemble(cases=cases), width)
    assert "rank_local_normalizer 1x2 seen in loss" in lines
    assert "tokens_regrouped 2x2 seen in loss, kl" in lines
    assert "beta_differs 2x1 [refused as planned]" in lines


def test_faults_stand_in_columns_where_their_names_fit(make_case: Maker) -> None:
    moved = (QuantityResult(name="per_sequence_policy", verdict="drift", elements=1, mismatched=1),)
    names = ("sequences_swapped_at_assembly", "bf16_token_sum")
    report = Report.assemble(cases=[make_case("drift", "caught", name=name, quantities=moved) for name in names])
    apart = f"  sequences_swapped_at_assembly  2x2  seen in\n{'per_sequence_policy':>57}\n  bf16_token_sum  "
    hanging = "  sequences_swapped_at_assembly 2x2 seen in\n    per_sequence_policy"
    assert apart in render(report, "terminal", width=60)
    assert hanging in render(report, "terminal", width=50)


def test_runs_of_one_fault_share_a_line(make_case: Maker) -> None:
    cases = [make_case("caught", "caught", name=f"fault/a/1x{dp}", tp=1, dp=dp) for dp in (2, 3)]
    assert any(line.startswith("a (x2) 1x2, 1x3") for line in drawn(Report.assemble(cases=cases), 80))


def test_many_faults_are_counted(make_case: Maker) -> None:
    cases = [make_case("caught", "caught", name=f"fault {number}") for number in range(50)]
    lines = drawn(Report.assemble(cases=cases), 80)
    assert "and 30 more" in lines
    assert len(lines) < 35


def test_a_fingerprint_of_several_contracts_says_so(make_case: Maker) -> None:
    cases = [make_case(batch=batch) for batch in ("seed", "long")]
    contract = {batch: {"objective": {}} for batch in ("seed", "long")}
    report = Report.assemble(cases=cases, contract=contract, numeric_fingerprint="0123456789abcdef")
    assert facts(report)["contract"] == "0123456789ab (of 2 batches)"
    single = Report.assemble(cases=cases[:1], contract={"seed": {}}, numeric_fingerprint="0123456789abcdef")
    assert facts(single)["contract"] == "0123456789ab"
