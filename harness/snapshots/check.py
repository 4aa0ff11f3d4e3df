"""A snapshot against here and now: every requested entry gets a state, and the states make a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from torch import Tensor

from harness.comparison import compare
from harness.drift import Drift
from harness.planned import PlannedCase
from harness.rank_outcome import RankOutcome, case_result
from harness.snapshots import store
from harness.snapshots.digests import differing_blocks
from harness.snapshots.entry import Entry, QuantityDigest
from harness.snapshots.obtain import TRANSPORT, Obtained
from reports import CaseResult, Layout, Verdict


class State(StrEnum):
    """How an entry stands."""

    MATCH = "match"
    DRIFT = "drift"
    NOT_COMPARABLE = "not comparable"
    MISSING = "missing"
    STALE = "stale"
    SAVED = "saved"
    UPDATED = "updated"


@dataclass(frozen=True)
class Checked:
    """One entry with its state and, in words, why; `expected` is what the snapshot holds, where it holds any."""

    state: State
    entry: Entry
    why: str
    obtained: Obtained | None = None
    expected: Entry | None = None
    place: Path | None = None


def check_entries(
    folder: Path, obtained: Iterable[Obtained], *, save: bool = False, update: bool = False
) -> list[Checked]:
    """The state of every obtained entry, then the stale ones. `save` adds missing ones, `update` replaces."""
    held = store.read_entries(folder)
    found = []
    for each in obtained:
        checked = _check(folder, held, each)
        found.append(_acted(folder, checked, save=save, update=update))
    return [*found, *_stale(held, [each.entry for each in found])]


def _check(folder: Path, held: Sequence[Entry], obtained: Obtained) -> Checked:
    entry = obtained.entry
    same = [each for each in held if each.name == entry.name]
    exact = next((each for each in same if each.key == entry.key), None)
    place = folder / entry.folder
    if exact is not None:
        names = exact.differing(entry)
        state = State.DRIFT if names else State.MATCH
        why = f"other bits in {', '.join(names)}" if names else "the same bits"
        return Checked(state, entry, why, obtained, exact, place)
    elsewhere = [each for each in same if each.key.numeric_fingerprint == entry.key.numeric_fingerprint]
    if elsewhere:
        return Checked(State.NOT_COMPARABLE, entry, _differences(entry, elsewhere[0]), obtained)
    return Checked(State.MISSING, entry, "the snapshot has no such entry", obtained)


def _differences(entry: Entry, other: Entry) -> str:
    here, there = entry.key.model_dump(), other.key.model_dump()
    return ", ".join(
        f"{name} {there[name]} there, {here[name]} here" for name in here if here[name] != there[name]
    )


def _acted(folder: Path, checked: Checked, *, save: bool, update: bool) -> Checked:
    obtained = checked.obtained
    assert obtained is not None
    if checked.state is State.MATCH:
        store.drop_obtained(folder, checked.entry)
    elif checked.state is State.DRIFT and not update:
        place = store.keep_obtained(folder, obtained)
        why = f"{checked.why}; obtained is kept beside expected in {place}"
        return Checked(State.DRIFT, checked.entry, why, obtained, checked.expected, place)
    elif checked.state is State.DRIFT:
        return Checked(State.UPDATED, checked.entry, checked.why, place=store.accept(folder, obtained))
    elif save or update:
        return Checked(State.SAVED, checked.entry, checked.why, place=store.save_expected(folder, obtained))
    return checked


def _stale(held: Sequence[Entry], requested: Sequence[Entry]) -> list[Checked]:
    """Entries of this environment and op that no requested case looks at; those of others are not judged."""
    places = {each.folder for each in requested}
    ours = [(each.key.environment, each.key.op) for each in requested]
    return [
        Checked(State.STALE, each, "no requested case looks at it: another batch, seed or contract")
        for each in held
        if each.folder not in places and (each.key.environment, each.key.op) in ours
    ]


def case_of(index: int, checked: Checked) -> CaseResult:
    """A checked entry as a case of a report; one that proves nothing is skipped, with its state as the reason."""
    entry = checked.entry
    planned = PlannedCase(index=index, name=entry.name, op=entry.key.op, layout=(1, 1), batch=entry.batch,
                          seed=entry.seed, repeat=1)  # fmt: skip
    if checked.state not in (State.MATCH, State.DRIFT):
        return CaseResult(
            name=entry.name,
            op=entry.key.op,
            layout=Layout(tp=1, dp=1),
            batch=entry.batch,
            seed=entry.seed,
            verdict=Verdict.SKIPPED,
            reason=f"{checked.state.value}: {checked.why}",
        )
    drifts, notes = _drifts(checked)
    outcome = RankOutcome(tp_rank=0, dp_rank=0, drifts=tuple(drifts), notes=tuple(notes))
    result = case_result(planned, [outcome], transport=TRANSPORT)
    return result if checked.state is State.MATCH else result.model_copy(update={"reason": checked.why})


def _drifts(checked: Checked) -> tuple[list[Drift], list[str]]:
    obtained, expected = checked.obtained, checked.expected
    assert obtained is not None
    assert expected is not None
    assert checked.place is not None
    kept = _kept(checked.place) if checked.state is State.DRIFT else {}
    drifts, notes = [], []
    for name in dict.fromkeys((*expected.quantities, *obtained.tensors)):
        wanted, got = expected.quantities.get(name), obtained.entry.quantities.get(name)
        if wanted is None or got is None:
            drifts.append(_one_sided(name, wanted, got))
        elif wanted == got or name in kept:
            value = obtained.tensors[name]
            drifts.append(compare(name, kept.get(name, value), value))
        else:
            drifts.append(_by_digest(name, obtained.tensors[name], wanted, got))
            notes.append(
                f"{name} is located by digests: its counts are those of blocks of {wanted.block} elements"
            )
    return drifts, notes


def _one_sided(name: str, expected: QuantityDigest | None, got: QuantityDigest | None) -> Drift:
    return Drift(name=name, elements=1, nonzero=1, **_described(expected, got))


def _described(expected: QuantityDigest | None, got: QuantityDigest | None) -> dict[str, Any]:
    words = ["nothing" if each is None else f"{list(each.shape)} {each.dtype}" for each in (expected, got)]
    unknown = {"mismatched": 1, "max_abs": math.nan, "expected_bits": "0x0", "got_bits": "0x0"}
    return {**unknown, "expected": words[0], "got": words[1]}


def _kept(place: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    path = place / f"{store.EXPECTED}.safetensors"
    return load_file(path) if path.exists() else {}


def _by_digest(name: str, value: Tensor, expected: QuantityDigest, got: QuantityDigest) -> Drift:
    """A difference known by digests alone: whole blocks count, and values are not shown."""
    seen = compare(name, value, value)
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return seen.model_copy(update={**_described(expected, got), "mismatched": seen.elements})
    blocks = list(differing_blocks(expected, got))
    length = math.prod(got.shape[1:]) if len(got.shape) > 1 else 1
    s, b, mine, theirs = blocks[0]
    place = _place(s, b * expected.block, got.shape)
    return seen.model_copy(
        update={
            "mismatched": sum(min(expected.block, length - block * expected.block) for _, block, _, _ in blocks),
            "max_abs": math.nan,
            "first": place,
            "sequences": tuple(sorted({each[0] for each in blocks})),
            "expected": f"block {b} of sequence {s}",
            "got": f"block {b} of sequence {s}",
            "expected_bits": f"0x{mine}",
            "got_bits": f"0x{theirs}",
        }
    )


def _place(sequence: int, offset: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) == 3:
        return (sequence, *divmod(offset, shape[2]))
    return (sequence,) if shape else ()
