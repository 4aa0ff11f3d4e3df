"""The answer of `grpo-verify reveal`, as text and as JSON."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.revealing.reveal import Revealed, reveal_status
from harness.revealing.sum_trees import Tree, first_difference
from harness.revealing.tree_names import name_of, notation


@dataclass(frozen=True)
class Asked:
    """Of what the order is: an op, its backend where it is one of ours, and where it ran."""

    op: str
    device: str = "cpu"
    backend: str | None = None
    dtype: str = "float32"
    interpreted: bool = False

    @classmethod
    def of(cls, name: str, op: Any, device: str, dtype: str) -> Asked:
        """As `op` tells it."""
        backend = getattr(op, "backend", None)
        interpreted = backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
        return cls(name, device, backend if isinstance(backend, str) else None, dtype, interpreted)

    def __str__(self) -> str:
        backend = f" ({self.backend})" if self.backend and self.backend != self.op else ""
        where = (
            f"{self.device}, in Triton's interpreter: a GPU's own order may be another"
            if self.interpreted
            else (self.device)
        )
        return f"{self.op}{backend} for {self.dtype} logits on {where}"


def reveal_text(asked: Asked, found: Sequence[Revealed]) -> str:
    """The trees by reduction; layouts that add in one order share a line, and the first difference is shown."""
    lines = [
        f"summation order of {asked}",
        "from outside; equal trees prove equal order for every input of this shape",
    ]
    for each in found:
        lines += ["", f"{each.name} ({each.about})", *_lines(each)]
    ends = {
        0: "every revealed order is the same at every layout",
        1: "DRIFT: an order changes with the layout",
        3: "nothing proven: no order could be compared between layouts",
    }
    return "\n".join([*lines, "", ends[reveal_status(found)], ""])


def _lines(found: Revealed) -> list[str]:
    by_tree: dict[Tree, list[str]] = {}
    for label, tree in found.trees.items():
        by_tree.setdefault(tree, []).append(label)
    lines = []
    for tree, labels in by_tree.items():
        lines += [f"  {', '.join(labels)}: {name_of(tree) or 'an order of its own'}", f"    {notation(tree)}"]
    first = next(iter(by_tree), 0)
    for other in list(by_tree)[1:]:
        lines.append(f"  first difference: {_difference(by_tree[first][0], first, by_tree[other][0], other)}")
    lines += [f"  {label}: cannot be revealed: {why}" for label, why in found.refusals.items()]
    return lines + _beside_native(found)


def _beside_native(found: Revealed) -> list[str]:
    """What the native op does at 1x1: said, never judged."""
    if found.native is None:
        return []
    if found.native in found.trees.values():
        return ["  the native op: the same order"]
    label, tree = next(iter(found.trees.items()))
    difference = _difference(label, tree, "it", found.native)
    order = name_of(found.native) or "an order of its own"
    return [f"  the native op at 1x1: {order}; {difference} (equal bits of two backends are not promised)"]


def _difference(one: str, tree: Tree, other: str, second: Tree) -> str:
    difference = first_difference(tree, second)
    assert difference is not None  # the trees differ
    here, there = map(notation, difference)
    return f"{one} adds {here} where {other} adds {there}"


def reveal_content(asked: Asked, found: Sequence[Revealed]) -> dict[str, Any]:
    """The same as plain JSON values."""
    return {
        **asdict(asked),
        "exit_status": reveal_status(found),
        "reductions": [
            {
                "name": each.name,
                "about": each.about,
                "agrees": each.agrees,
                "trees": each.trees,
                "order": {layout: name_of(tree) for layout, tree in each.trees.items()},
                "not_revealed": each.refusals,
                "native": each.native,
            }
            for each in found
        ],
    }
