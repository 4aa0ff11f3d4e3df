"""Snapshots: what is kept, every state, and that nothing is overwritten without --update."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo_contract import InputError
from harness.comparing.digests import BLOCK, differing_blocks, digest_of
from harness.runs.request import plan_for
from harness.settings.run_config import RunConfig
from harness.snapshots import store
from harness.snapshots.cases import case_of
from harness.snapshots.check import State, check_entries
from harness.snapshots.obtain import Obtained, obtain
from harness.snapshots.report import snapshot_report


@pytest.fixture(scope="module")
def seed_batch() -> Obtained:
    settings = RunConfig(layouts=("1x1",), controls="off", batch=("seed",))
    (found,) = obtain(plan_for(settings))
    return found


def changed(obtained: Obtained, name: str, *index: int) -> Obtained:
    """The same with one element of a quantity doubled."""
    value = obtained.tensors[name].clone()
    value[index] = value[index] * 2 + 1
    return with_value(obtained, name, value)


def with_value(obtained: Obtained, name: str, value: torch.Tensor) -> Obtained:
    quantities = {**obtained.entry.quantities, name: digest_of(name, value)}
    entry = obtained.entry.model_copy(update={"quantities": quantities})
    return Obtained(entry, {**obtained.tensors, name: value})


def with_key(obtained: Obtained, **fields: str) -> Obtained:
    key = obtained.entry.key.model_copy(update=fields)
    return replace(obtained, entry=obtained.entry.model_copy(update={"key": key}))


def states(folder: Path, *obtained: Obtained, **options: bool) -> list[str]:
    return [each.state.value for each in check_entries(folder, obtained, **options)]


def test_saved_then_the_same_matches(tmp_path: Path, seed_batch: Obtained) -> None:
    assert states(tmp_path, seed_batch) == ["missing"]
    assert not list(tmp_path.iterdir()), "a check writes nothing new"
    assert states(tmp_path, seed_batch, save=True) == ["saved"]
    assert states(tmp_path, seed_batch) == ["match"]
    report = snapshot_report(check_entries(tmp_path, [seed_batch]), tmp_path, ("check",))
    assert (report.verdict, report.exit_status, len(report.cases[0].quantities)) == ("match", 0, 9)


def test_a_small_tensor_is_compared_element_by_element(tmp_path: Path, seed_batch: Obtained) -> None:
    states(tmp_path, seed_batch, save=True)
    (checked,) = check_entries(tmp_path, [changed(seed_batch, "per_sequence_policy", 3)])
    case = case_of(0, checked)
    (quantity,) = case.drifted
    assert (checked.state, quantity.name, quantity.mismatched) == (State.DRIFT, "per_sequence_policy", 1)
    assert quantity.first is not None
    assert quantity.first.sequence == 3
    assert case.diagnosis is not None
    assert snapshot_report([checked], tmp_path, ()).exit_status == 1


def test_a_large_tensor_is_located_by_its_digests(tmp_path: Path, seed_batch: Obtained) -> None:
    states(tmp_path, seed_batch, save=True)
    (checked,) = check_entries(tmp_path, [changed(seed_batch, "grad_policy_logits", 5, 30, 900)])
    (quantity,) = case_of(0, checked).drifted
    assert quantity.sequences == (5,)
    assert quantity.mismatched == 32 * 1024, "the whole block of sequence 5"
    assert quantity.first is not None
    assert (quantity.first.sequence, quantity.first.token, quantity.first.column) == (5, 0, 0)
    assert any("located by digests" in note for note in case_of(0, checked).notes)


def test_nothing_is_overwritten_but_with_update(tmp_path: Path, seed_batch: Obtained) -> None:
    states(tmp_path, seed_batch, save=True)
    other = changed(seed_batch, "loss")
    place = tmp_path / seed_batch.entry.folder
    before = (place / "expected.json").read_bytes()
    for options in ({}, {"save": True}):
        assert states(tmp_path, other, **options) == ["drift"]
        assert (place / "expected.json").read_bytes() == before
        assert store.read_entry(place / "obtained.json") == other.entry
    assert states(tmp_path, other, update=True) == ["updated"]
    assert not (place / "obtained.json").exists()
    assert states(tmp_path, other) == ["match"]


def test_a_match_forgets_an_earlier_difference(tmp_path: Path, seed_batch: Obtained) -> None:
    states(tmp_path, seed_batch, save=True)
    states(tmp_path, changed(seed_batch, "loss"))
    assert states(tmp_path, seed_batch) == ["match"]
    assert sorted(path.name for path in (tmp_path / seed_batch.entry.folder).iterdir()) == [
        "expected.json",
        "expected.safetensors",
    ]


def test_another_build_is_not_comparable_and_said_so(tmp_path: Path, seed_batch: Obtained) -> None:
    states(tmp_path, with_key(seed_batch, torch="2.11.0", device="H200"), save=True)
    (checked,) = check_entries(tmp_path, [seed_batch])
    assert checked.state is State.NOT_COMPARABLE
    assert "torch 2.11.0 there" in checked.why
    assert "device H200 there" in checked.why
    report = snapshot_report([checked], tmp_path, ())
    assert report.exit_status == 3
    assert "not comparable" in str(report.cases[0].reason)
    assert states(tmp_path, seed_batch, save=True) == ["saved"], "both live side by side"
    assert states(tmp_path, seed_batch) == ["match"]


def test_what_nobody_asks_for_is_stale_and_stays(tmp_path: Path, seed_batch: Obtained) -> None:
    states(tmp_path, seed_batch, save=True)
    other = with_key(seed_batch, numeric_fingerprint="0" * 64)
    assert states(tmp_path, other) == ["missing", "stale"]
    assert states(tmp_path, other, update=True) == ["saved", "stale"]
    assert states(tmp_path, seed_batch) == ["match", "stale"]
    assert len(store.read_entries(tmp_path)) == 2


def test_a_quantity_that_went_missing_is_a_drift(tmp_path: Path, seed_batch: Obtained) -> None:
    states(tmp_path, seed_batch, save=True)
    quantities = {name: each for name, each in seed_batch.entry.quantities.items() if name != "kl"}
    entry = seed_batch.entry.model_copy(update={"quantities": quantities})
    tensors = {name: each for name, each in seed_batch.tensors.items() if name != "kl"}
    (checked,) = check_entries(tmp_path, [Obtained(entry, tensors)])
    assert [quantity.name for quantity in case_of(0, checked).drifted] == ["kl"]


def test_another_shape_is_a_drift(tmp_path: Path, seed_batch: Obtained) -> None:
    states(tmp_path, seed_batch, save=True)
    odd = with_value(seed_batch, "grad_policy_logits", seed_batch.tensors["grad_policy_logits"][:4])
    (checked,) = check_entries(tmp_path, [odd])
    assert case_of(0, checked).drifted[0].first is not None


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"{", "a damaged file"),
        (b"", "a damaged file"),
        (b"\xff", "a damaged file"),
        (b"[]", "no entry"),
        (b'{"name": "x", "key": {}}', "one whose batch, seed, key, contract, quantities do not fit"),
    ],
)
def test_a_broken_entry_is_refused(tmp_path: Path, seed_batch: Obtained, content: bytes, got: str) -> None:
    states(tmp_path, seed_batch, save=True)
    file = tmp_path / seed_batch.entry.folder / "expected.json"
    file.write_bytes(content)
    with pytest.raises(InputError) as refused:
        states(tmp_path, seed_batch)
    assert str(refused.value).endswith(f"{file}: expected a snapshot entry of this version, got {got}")


def test_digests_see_a_sign_of_zero_a_swap_and_a_block() -> None:
    values = torch.randn(3, BLOCK + 5)
    swapped = values[[1, 0, 2]]
    assert digest_of("x", values).digest != digest_of("x", swapped).digest
    assert digest_of("x", torch.zeros(2)).digest != digest_of("x", torch.tensor([0.0, -0.0])).digest
    other = values.clone()
    other[2, BLOCK + 1] += 1
    found = list(differing_blocks(digest_of("x", values), digest_of("x", other)))
    assert [(s, b) for s, b, _, _ in found] == [(2, 1)]


def test_lost_tensors_are_told_and_can_be_written_anew(tmp_path: Path, seed_batch: Obtained) -> None:
    check_entries(tmp_path, [seed_batch], save=True)
    (kept,) = tmp_path.glob("*/expected.safetensors")
    for damage in (kept.unlink, lambda: kept.write_text("broken")):
        damage()
        report = snapshot_report(check_entries(tmp_path, [seed_batch]), tmp_path, ())
        assert report.exit_status == 0
        assert any(str(kept) in note and "by the digests alone" in note for note in report.cases[0].notes)
        drifted = changed(seed_batch, "loss")
        (checked,) = check_entries(tmp_path, [drifted])
        told = snapshot_report([checked], tmp_path, ()).cases[0].notes
        assert any("loss is located by digests" in note for note in told)
        assert check_entries(tmp_path, [seed_batch], update=True)[0].state == "match"
        assert snapshot_report(check_entries(tmp_path, [seed_batch]), tmp_path, ()).cases[0].notes == ()
