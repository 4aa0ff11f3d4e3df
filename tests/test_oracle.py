"""The oracle against everything that is known about it: case files, captures, finite differences, identities.

`GRPO_VERIFY_CAPTURES`, the path of a folder with full captures and their `.expected.json`, adds those.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle.capture import Capture, read_capture, sha256_of
from oracle.cases import ExpectedError, evaluate_formula, load_case, load_cases, run_oracle
from oracle.expect import mismatches
from oracle.grpo import OracleResult, OracleSettings, group_advantages, grpo_oracle
from oracle.make_capture_slice import expected_values, main, run_normalizers, slice_capture

DATA = Path(__file__).parent / "data"
SLICE = DATA / "smollm2-b4-t8.safetensors"
CAPTURES = os.environ.get("GRPO_VERIFY_CAPTURES")
NO_CAPTURES = "set GRPO_VERIFY_CAPTURES to a folder of NAME.safetensors with NAME.expected.json"
PER_SEQUENCE = ("per_sequence_policy", "per_sequence_kl", "advantages")
SCALARS = ("loss", "policy_loss", "kl")

CASES = load_cases()
VALUE_CASES = [case for case in CASES if case.expected is not None]
ERROR_CASES = [case for case in CASES if case.expected is None]


def ids(cases: list[Any]) -> list[str]:
    return [case.name for case in cases]


# Case files


@pytest.mark.parametrize("case", VALUE_CASES, ids=ids(VALUE_CASES))
def test_case_values_hold_to_the_last_digit_written(case: Any) -> None:
    actual = dataclasses.asdict(run_oracle(case))
    assert mismatches(case, actual, rtol=1e-10, atol=1e-13) == []


@pytest.mark.parametrize("case", VALUE_CASES, ids=ids(VALUE_CASES))
def test_zero_rows_are_exactly_the_listed_ones(case: Any) -> None:
    rows = np.argwhere((run_oracle(case).grad == 0).all(axis=-1))
    assert rows.tolist() == case.expected["grad"]["zero_rows"]


@pytest.mark.parametrize("case", VALUE_CASES, ids=ids(VALUE_CASES))
def test_a_wrong_gradient_scale_is_noticed(case: Any) -> None:
    actual = dataclasses.asdict(run_oracle(case))
    actual["grad"] = actual["grad"] * 1.001
    assert any(line.startswith("grad.abs_sum") for line in mismatches(case, actual))


def test_every_kind_of_mismatch_is_reported() -> None:
    case = load_case("golden-dyadic-grid")
    good = dataclasses.asdict(run_oracle(case))
    padding, masked = good["grad"].copy(), good["grad"].copy()
    padding[0, 0, 31] = masked[7, 7, 0] = 1e-30
    wrong = {
        "kl: ": {"kl": good["kl"] + 1e-3},
        "per_sequence_active_tokens": {"per_sequence_active_tokens": [8] * 8},
        "clip_counts.high": {"clip_counts": good["clip_counts"] | {"high": 12}},
        "grad: padding": {"grad": padding},
        "grad[7, 7]": {"grad": masked},
    }
    for start, change in wrong.items():
        assert [line for line in mismatches(case, good | change) if line.startswith(start)], start


def test_exact_zeros_must_be_exact() -> None:
    case = load_case("equal-rewards-seven-of-0-7")
    actual = dataclasses.asdict(run_oracle(case)) | {"policy_loss": 1e-30}
    assert mismatches(case, actual) == ["policy_loss: zeros must be exact, got [1.e-30]"]


@pytest.mark.parametrize("case", ERROR_CASES, ids=ids(ERROR_CASES))
def test_error_cases_say_what_must_be_mentioned(case: Any) -> None:
    assert case.expected_error.kind in {"contract", "input", "preflight"}
    assert case.expected_error.must_mention


@pytest.mark.parametrize("name", ["no-active-tokens", "singleton-group-population-std"])
def test_undefined_cases_raise(name: str) -> None:
    case = load_case(name)
    assert case.expected_error is not None
    with pytest.raises(ValueError, match=r"no active tokens|group") as caught:
        run_oracle(case)
    assert case.expected_error.missing_from(str(caught.value)) == []


def test_k3_of_the_refused_case_exceeds_float32() -> None:
    result = run_oracle(load_case("k3-difference-100"))
    over = np.argwhere(result.kl_per_token > np.finfo(np.float32).max)
    assert over.tolist() == [[1, 0]]


def test_padding_to_a_larger_width_changes_no_bit() -> None:
    narrow, wide = (run_oracle(load_case(f"fixed-constant-width-{width}")) for width in (4, 8))
    assert np.array_equal(narrow.grad, wide.grad[:, :4])
    assert narrow.loss == wide.loss


# Loader


def test_a_message_is_searched_without_case_and_spaces() -> None:
    error = ExpectedError("input", ("[0, 1]", "Non-Finite", "absent"))
    assert error.missing_from("a non-finite value at [0,1]") == ["absent"]


def test_formula_remainder_is_not_negative_and_comparison_is_a_number() -> None:
    assert evaluate_formula("(s - 2) % 3", [4]).tolist() == [1, 2, 0, 1]
    assert evaluate_formula("t < 2 - s", [2, 3]).tolist() == [[1, 1, 0], [1, 0, 0]]
    assert evaluate_formula("-(r + 1) / 4", [2, 2]).tolist() == [[-0.25, -0.5], [-0.75, -1.0]]


@pytest.mark.parametrize("formula", ["s / 2 + 1", "s ** 2", "__import__('os')", "x", "1.5 * s", "1 < s < 3"])
def test_other_formulas_are_refused(formula: str) -> None:
    with pytest.raises(ValueError, match="a formula cannot hold"):
        evaluate_formula(formula, [3])


def test_contract_fields_drop_what_has_no_meaning() -> None:
    fields = load_case("golden-reductions-length-power").contract_fields()
    assert "sequence_denominator" not in fields
    assert "fixed_constant" not in fields
    assert fields["alpha"] == 0.5
    kept = load_case("masked-sequence-all-denominator").contract_fields()
    assert kept["sequence_denominator"] == "all"


def test_layouts_and_bounds() -> None:
    assert load_case("active-old-nan").layouts == ((1, 1),)
    uneven = load_case("groups-straddle-uneven-shards")
    assert (2, 2) in uneven.layouts
    assert uneven.dp_bounds == {2: ((0, 2), (2, 7)), 3: ((0, 1), (1, 6), (6, 7))}


# Identities


def random_batch(seed: int = 0) -> dict[str, Any]:
    """Six sequences of at most four tokens over seven columns, the last one padding; one sequence is dead."""
    rng = np.random.default_rng(seed)
    mask = rng.random((6, 4)) < 0.7
    mask[2], mask[0] = False, True
    return {
        "policy_logits": rng.normal(size=(6, 4, 7)),
        "ref_logits": rng.normal(size=(6, 4, 7)),
        "action_ids": rng.integers(0, 6, size=(6, 4)),
        "old_logps": rng.normal(size=(6, 4)) * 0.5 - 1.8,
        "rewards": rng.normal(size=6),
        "completion_mask": mask,
    }


def settings(**changes: Any) -> OracleSettings:
    fields: dict[str, Any] = {"group_boundaries": (0, 2, 6), "real_vocab_size": 6}
    return OracleSettings(**fields | changes)


def central_difference(batch: dict[str, Any], chosen: OracleSettings, step: float = 1e-5) -> Any:
    """d loss / d policy_logits, one logit at a time."""
    grad = np.zeros_like(batch["policy_logits"])
    for index in np.ndindex(grad.shape):
        losses = []
        for sign in (1, -1):
            moved = batch["policy_logits"].copy()
            moved[index] += sign * step
            losses.append(grpo_oracle(**batch | {"policy_logits": moved}, settings=chosen).loss)
        grad[index] = (losses[0] - losses[1]) / (2 * step)
    return grad


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kl_estimator": "k1", "temperature": 1.7, "clip_eps_high": 0.28},
        {"kl_estimator": "k2", "token_normalizer": "per_sequence_then_mean", "beta": 0.5},
        {"token_normalizer": "per_sequence_then_mean", "sequence_denominator": "all", "temperature": 0.6},
        {"token_normalizer": "fixed_constant", "fixed_constant": 24, "advantage": "mean_only"},
        {"token_normalizer": "length_power", "alpha": 0.5, "advantage": "mean_std_sample"},
    ],
)
def test_gradient_agrees_with_finite_differences(changes: dict[str, Any]) -> None:
    batch, chosen = random_batch(), settings(**changes)
    result = grpo_oracle(**batch, settings=chosen)
    bounds = (1 - chosen.clip_eps_low, 1 + chosen.clip_eps_high)
    assert min(np.abs(result.ratio - bound).min() for bound in bounds) > 1e-3, "too near a kink to differentiate"
    assert 0 < result.clip_counts["region"] < result.clip_counts["active"]
    np.testing.assert_allclose(result.grad, central_difference(batch, chosen), rtol=1e-6, atol=1e-9)


def test_length_power_meets_its_two_limits() -> None:
    batch = random_batch()
    zero, one = (
        grpo_oracle(**batch, settings=settings(token_normalizer="length_power", alpha=a)) for a in (0.0, 1.0)
    )
    mean = settings(token_normalizer="per_sequence_then_mean", sequence_denominator="all")
    constant = settings(token_normalizer="fixed_constant", fixed_constant=6)
    for powered, plain in ((zero, mean), (one, constant)):
        expected = grpo_oracle(**batch, settings=plain)
        np.testing.assert_allclose(powered.grad, expected.grad, rtol=1e-13)
        assert powered.loss == pytest.approx(expected.loss, rel=1e-13)


def test_without_beta_the_reference_is_reported_and_changes_nothing_else() -> None:
    batch, chosen = random_batch(), settings(beta=0.0)
    with_ref = grpo_oracle(**batch, settings=chosen)
    without = grpo_oracle(**batch | {"ref_logits": None}, settings=chosen)
    assert with_ref.kl != 0
    assert without.kl == 0
    assert with_ref.loss == without.loss
    assert np.array_equal(with_ref.grad, without.grad)


def test_on_policy_with_itself_as_reference_has_ratio_one_and_no_kl() -> None:
    batch, chosen = random_batch(), settings(clip_eps_low=0.0, clip_eps_high=0.0)
    logps = grpo_oracle(**batch, settings=chosen).logps.astype(np.float32)
    same = batch | {"ref_logits": batch["policy_logits"], "old_logps": logps}
    result = grpo_oracle(**same, settings=chosen)
    assert (result.ratio[batch["completion_mask"]] == 1).all()
    assert result.kl == 0
    assert result.clip_counts["region"] == 0
    assert np.abs(result.grad).max() > 0


@pytest.mark.parametrize(
    ("mode", "scale"), [("floor", 0.75), ("add", 0.5 + 0.75), ("variance", (0.25 + 0.75) ** 0.5)]
)
def test_std_eps_modes(mode: str, scale: float) -> None:
    chosen = OracleSettings(group_boundaries=(0, 2, 5), std_eps=0.75, std_eps_mode=mode)
    advantages = group_advantages(np.array([3.0, 2.0, 7.0, 7.0, 7.0]), chosen)
    np.testing.assert_allclose(advantages, [0.5 / scale, -0.5 / scale, 0, 0, 0], rtol=1e-15)
    assert (advantages[2:] == 0).all()


# Captures


def check_shared(result: OracleResult, expected: dict[str, Any]) -> None:
    """What a capture's expected file says once for all normalizers."""
    for name in PER_SEQUENCE:
        np.testing.assert_allclose(getattr(result, name), expected[name], rtol=1e-10, err_msg=name)
    assert result.per_sequence_active_tokens.tolist() == expected["per_sequence_active_tokens"]
    grad = expected["grad_policy_logits"]
    for entry in grad["largest"]:
        assert result.grad[tuple(entry["index_btv"])] == pytest.approx(entry["value"], rel=1e-10)


def norms(result: OracleResult) -> tuple[float, float]:
    return float(np.abs(result.grad).sum()), float(np.sqrt((result.grad * result.grad).sum()))


def load_capture(path: Path) -> tuple[Capture, dict[str, Any]]:
    expected = json.loads(path.with_suffix(".expected.json").read_text(encoding="utf-8"))
    assert sha256_of(path) == expected["capture_sha256"]
    return read_capture(path), expected


def test_slice_gives_its_expected_values() -> None:
    capture, expected = load_capture(SLICE)
    results = run_normalizers(capture)
    check_shared(results["global_active_tokens"], expected)
    assert results["global_active_tokens"].clip_counts == expected["clip_counts"]
    assert len(expected["grad_policy_logits"]["largest"]) == 20
    assert set(results) == set(expected["normalizers"])
    for name, want in expected["normalizers"].items():
        for scalar in SCALARS:
            assert getattr(results[name], scalar) == pytest.approx(want[scalar], rel=1e-10), name
        assert norms(results[name]) == pytest.approx((want["grad_abs_sum"], want["grad_l2"]), rel=1e-10)


def test_slice_carries_the_metadata_of_a_capture() -> None:
    capture = read_capture(SLICE)
    assert capture.metadata["format"] == "grpo-capture-v1"
    assert capture.group_boundaries() == (0, 4)
    assert len(json.loads(capture.metadata["completions"])) == 4
    assert capture.dtypes["policy_logits"] == capture.dtypes["ref_logits"] == "BF16"
    assert SLICE.stat().st_size < 7_000_000


def test_slices_are_whole_groups() -> None:
    with pytest.raises(ValueError, match="not whole groups"):
        slice_capture(read_capture(SLICE), 0, 3, "here")


def test_writing_a_slice_is_reproducible(tmp_path: Path) -> None:
    outputs = [tmp_path / name / "again.safetensors" for name in ("one", "two")]
    for output in outputs:
        output.parent.mkdir()
        assert main([str(SLICE), str(output), "--sequences", "0", "4"]) == 0
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    again = read_capture(outputs[0])
    for name, value in read_capture(SLICE).stored.items():
        assert np.array_equal(again.stored[name], value), name


def full_captures() -> list[Any]:
    found = sorted(Path(CAPTURES).glob("*.expected.json")) if CAPTURES else []
    paths = [path.with_name(path.name.replace(".expected.json", ".safetensors")) for path in found]
    skip = pytest.mark.skip(reason=NO_CAPTURES)
    return [pytest.param(path, id=path.stem) for path in paths] or [pytest.param(None, marks=skip, id="none")]


@pytest.mark.parametrize("path", full_captures())
def test_full_capture_gives_its_expected_values(path: Path) -> None:
    capture, expected = load_capture(path)
    results = run_normalizers(capture)
    check_shared(results["global_active_tokens"], expected)
    context, counts = expected["context"], results["global_active_tokens"].clip_counts
    assert (counts["active"], counts["region"]) == (context["active_tokens"], context["clipped_tokens"])
    gradients = {"global_active_tokens": expected["grad_policy_logits"]}
    gradients |= expected["grad_policy_logits_other_normalizers"]
    for name, want in expected["normalizers"].items():
        for scalar in SCALARS:
            assert getattr(results[name], scalar) == pytest.approx(want[scalar], rel=1e-10), name
        assert norms(results[name]) == pytest.approx(
            (gradients[name]["abs_sum"], gradients[name]["l2_norm"]), rel=1e-10
        )


@pytest.mark.skipif(CAPTURES is None, reason=NO_CAPTURES)
def test_slice_is_the_first_group_of_the_full_capture(tmp_path: Path) -> None:
    source = Path(str(CAPTURES)) / "smollm2-b8-t8.safetensors"
    whole = json.loads(source.with_suffix(".expected.json").read_text(encoding="utf-8"))
    output = tmp_path / SLICE.name
    assert main([str(source), str(output), "--sequences", "0", "4"]) == 0
    assert output.read_bytes() == SLICE.read_bytes()
    piece = expected_values(read_capture(output), output)
    for name in PER_SEQUENCE:
        np.testing.assert_allclose(piece[name], whole[name][:4], rtol=1e-10, err_msg=name)
