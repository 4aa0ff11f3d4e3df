"""Two snapshots: their contracts, their environments and the quantities of the entries that both hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.comparing.entry import Entry
from harness.inspection.comparison import Change, Comparison, changes, lone_changes, one_sided, ranked


def compare_entries(one: Sequence[Entry], other: Sequence[Entry], folders: tuple[Path, Path]) -> Comparison:
    """What changed from `one`, in the first of the folders, to `other`, in the second."""
    from harness.snapshots.values import value_changes

    mine, theirs = {each.name: each for each in one}, {each.name: each for each in other}
    shared = [name for name in mine if name in theirs]
    numbers = []
    for name in shared:
        for quantity, words, weight in value_changes(mine[name], theirs[name], folders):
            numbers.append(Change(f"{name} {quantity}", *words, weight))
    numbers += lone_changes(mine, theirs)
    return Comparison(
        contract=changes(*({name: _said(held[name]) for name in shared} for held in (mine, theirs))),
        environment=changes(*({name: held[name].key.environment for name in shared} for held in (mine, theirs))),
        numbers=ranked(numbers),
        compared=len(shared),
        one_sided=one_sided(mine, theirs),
        bits=len(shared),
    )


def _said(entry: Entry) -> dict[str, Any]:
    return {"op": entry.key.op, **entry.contract}
