"""`compare A B`: contract and environment first, then numbers from the largest change down."""

import json
from pathlib import Path

import pytest

from harness.inspect_commands import compare
from harness.inspection.compare import compare_subjects, load_subject
from harness.inspection.comparison_text import comparison_json, comparison_text
from harness.settings.request_error import RequestError
from reports import CaseResult, Layout, QuantityResult, Report


def case(name: str, mismatched: int = 0, ulp: int = 0) -> CaseResult:
    verdict = "drift" if mismatched else "match"
    quantity = QuantityResult(name="loss", verdict=verdict, elements=8, mismatched=mismatched, max_ulp=ulp)
    return CaseResult(name=name, op="op", layout=Layout(tp=1, dp=2), batch="seed", seed=0, verdict=verdict,
                      quantities=(quantity,))  # fmt: skip


def saved(path: Path, *cases: CaseResult, beta: float = 0.04, torch: str = "2.13.0") -> Path:
    report = Report.assemble(
        cases=cases, contract={"seed": {"objective": {"beta": beta}}}, environment={"torch": torch}
    )
    path.write_text(report.to_json())
    return path


def test_reports_are_compared_around_then_inside(tmp_path: Path) -> None:
    one = saved(tmp_path / "a.json", case("x"), case("y", 1, 1), case("gone"))
    other = saved(
        tmp_path / "b.json", case("x", 8, 1 << 20), case("y", 2, 1), case("new"), beta=0.1, torch="2.14.0"
    )
    found = compare_subjects(load_subject(one), load_subject(other), (one, other))
    assert [(each.where, each.before, each.after) for each in found.contract] == [
        ("seed.objective.beta", "0.04", "0.1")
    ]
    assert [each.where for each in found.environment] == ["torch"]
    assert [each.where.split()[0] for each in found.numbers] == ["x", "gone", "new", "x", "y"]
    assert found.numbers[0].after == "drift"
    assert "up to 1048576 ULP" in found.numbers[3].after
    assert (found.status, found.compared) == (1, 2)
    assert len(found.one_sided) == 2
    text = comparison_text(("a", "b"), found)
    assert text.index("contract: 1 changed") < text.index("environment: 1") < text.index("numbers: 5")
    assert json.loads(comparison_json(("a", "b"), found))["exit_status"] == 1


def test_equal_reports_agree_and_strangers_prove_nothing(tmp_path: Path) -> None:
    one = saved(tmp_path / "a.json", case("x"))
    assert compare(one, one)[1] == 0
    other = saved(tmp_path / "b.json", case("y"))
    text, status = compare(one, other)
    assert status == 3
    assert "nothing could be compared" in text


def test_other_bits_are_told_where_every_layout_agrees(tmp_path: Path) -> None:
    def with_digest(digest: str | None) -> CaseResult:
        quantity = QuantityResult(name="kl", verdict="match", elements=8, baseline_digest=digest)
        return case("x").model_copy(update={"quantities": (quantity,)})

    one = saved(tmp_path / "a.json", with_digest("0123"), with_digest("0123").model_copy(update={"name": "y"}))
    text, status = compare(one, one)
    assert (status, "bit for bit" in text) == (0, True)
    other = saved(tmp_path / "b.json", with_digest("0124"), with_digest("0124").model_copy(update={"name": "y"}))
    text, status = compare(one, other)
    assert status == 1
    assert text.count("bits 0123 -> bits 0124") == 1
    moved = compare_subjects(load_subject(one), load_subject(other), (one, other))
    assert not moved.other_build
    built = saved(tmp_path / "d.json", with_digest("0124"), torch="2.14.0")
    assert "as they may between builds" in compare(one, built)[0]
    older = saved(tmp_path / "c.json", with_digest(None), with_digest(None).model_copy(update={"name": "y"}))
    text, status = compare(one, older)
    assert (status, "bit for bit" in text) == (0, False)
    assert "not compared are the numbers" in text


def test_what_one_side_lacks_is_no_agreement(tmp_path: Path) -> None:
    both = case("x")
    more = QuantityResult(name="kl", verdict="match", elements=8)
    wider = both.model_copy(update={"quantities": (*both.quantities, more)})
    one = saved(tmp_path / "a.json", both)
    for name, cases in (("case", (both, case("y"))), ("quantity", (wider,))):
        other = saved(tmp_path / f"{name}.json", *cases)
        for pair in ((one, other), (other, one)):
            text, status = compare(*pair)
            assert status == 1
            assert "numbers: 1 changed" in text
            assert "the numbers agree" not in text


def test_another_op_is_told_first(tmp_path: Path) -> None:
    one = saved(tmp_path / "a.json", case("x"))
    other = saved(tmp_path / "b.json", case("x").model_copy(update={"op": "mine:loss"}))
    text, status = compare(one, other)
    assert status == 0
    assert "contract: 1 changed\n  op: op -> mine:loss" in text


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_what_is_neither_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="a report or a snapshot"):
        load_subject(tmp_path / name)


def test_snapshots_are_compared_by_value(tmp_path: Path) -> None:
    from harness.inspect_commands import _saved
    from harness.settings.run_config import RunConfig

    one, other = tmp_path / "one", tmp_path / "other"
    assert _saved(one, RunConfig(batch=("seed",)), update=False)[1] == 0
    assert _saved(other, RunConfig(batch=("seed",), beta=0.08), update=False)[1] == 0
    found = compare_subjects(load_subject(one), load_subject(other), (one, other))
    assert [each.where for each in found.contract] == ["grpo_loss/seed/s0.objective.beta"]
    assert not found.environment
    names = [each.where.split()[-1] for each in found.numbers]
    assert set(names) == {"loss", "grad_policy_logits"}
    loss = next(each for each in found.numbers if each.where.endswith(" loss"))
    assert "relative" in loss.after
    report = saved(tmp_path / "a.json", case("x"))
    with pytest.raises(RequestError, match="two reports or two snapshots"):
        compare_subjects(load_subject(report), load_subject(one), (report, one))


def test_a_capture_has_no_seed_to_tell(tmp_path: Path) -> None:
    quantity = QuantityResult(name="loss", verdict="match", elements=8, baseline_digest="0123")
    captured = case("x").model_copy(update={"batch": "mine", "seed": None, "quantities": (quantity,)})
    moved = quantity.model_copy(update={"baseline_digest": "0124"})
    one = saved(tmp_path / "a.json", captured)
    other = saved(tmp_path / "b.json", captured.model_copy(update={"quantities": (moved,)}), case("y"))
    text, _ = compare(one, other)
    assert "baseline mine, loss" in text
    assert "y (1x2, seed, seed 0)" in text
    assert "None" not in text
