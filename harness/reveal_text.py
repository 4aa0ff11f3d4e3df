"""The answer of `grpo-verify reveal`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.reveal import Revealed, reveal_status
from harness.sum_trees import Tree, first_difference
from harness.tree_names import name_of, notation


def reveal_text(op: str, found: Sequence[Revealed]) -> str:
    """The trees by reduction; layouts that add in one order share a line, and the first difference is shown."""
    lines = [f"summation order of {op}, from outside; equal trees prove equal order for every input of this shape"]
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
    for layout, tree in found.trees.items():
        by_tree.setdefault(tree, []).append(layout)
    lines = []
    for tree, layouts in by_tree.items():
        lines += [f"  {' '.join(layouts)}: {name_of(tree) or 'an order of its own'}", f"    {notation(tree)}"]
    first = next(iter(by_tree), 0)
    for other in list(by_tree)[1:]:
        lines += _difference(by_tree[first][0], first, by_tree[other][0], other)
    return lines + [f"  {layout}: cannot be revealed: {why}" for layout, why in found.refusals.items()]


def _difference(one: str, tree: Tree, other: str, second: Tree) -> list[str]:
    difference = first_difference(tree, second)
    if difference is None:
        return []
    here, there = map(notation, difference)
    return [f"  first difference: {one} adds {here} where {other} adds {there}"]


def reveal_content(op: str, found: Sequence[Revealed]) -> dict[str, Any]:
    """The same as plain JSON values."""
    return {
        "op": op,
        "exit_status": reveal_status(found),
        "reductions": [
            {
                "name": each.name,
                "about": each.about,
                "agrees": each.agrees,
                "trees": each.trees,
                "order": {layout: name_of(tree) for layout, tree in each.trees.items()},
                "not_revealed": each.refusals,
            }
            for each in found
        ],
    }
