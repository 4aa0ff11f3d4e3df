"""A snapshot against here and now: every requested entry gets a state. Nothing is replaced unless asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.comparing.entry import Entry
from harness.snapshots import store
from harness.snapshots.obtain import Obtained


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
    if checked.state is State.MATCH and update:
        store.accept(folder, obtained)  # the same bits, and tensors whose file may be gone
    elif checked.state is State.MATCH:
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
