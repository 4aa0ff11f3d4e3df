"""Summation trees in words: the families that reducers use, and a compact notation. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from harness.revealing.sum_trees import Tree, canonical, leaves_of

MOST_CHARACTERS = 160


def sequential(parts: Sequence[Tree]) -> Tree:
    """One after the other, from the first."""
    return reduce(lambda tree, part: (tree, part), parts)


def folded(parts: Sequence[Tree]) -> Tree:
    """Padded to a power of two, the upper half added onto the lower, until one is left."""
    held = list(parts)
    while len(held) > 1:
        half = 1 << (len(held) - 1).bit_length() - 1
        upper: list[Tree] = [(low, high) for low, high in zip(held, held[half:], strict=False)]
        held = [*upper, *held[len(upper) : half]]
    return held[0]


def pairwise(parts: Sequence[Tree]) -> Tree:
    """Neighbours in pairs, then neighbouring pairs, and so on; an odd one out waits."""
    held = list(parts)
    while len(held) > 1:
        pairs: list[Tree] = [(a, b) for a, b in zip(held[::2], held[1::2], strict=False)]
        held = [*pairs, *(held[-1:] if len(held) % 2 else [])]
    return held[0]


FAMILIES: dict[str, Callable[[Sequence[Tree]], Tree]] = {
    "folded by halves": folded,
    "one after the other": sequential,
    "neighbours in pairs": pairwise,
}


def name_of(tree: Tree) -> str | None:
    """The family of a tree over terms 0 to n - 1, blocks and lanes included; None for no known one."""
    if isinstance(tree, int):
        return "a single term"
    count = len(leaves_of(tree))
    if len(tree) == count:
        return "all in one step" if count > 2 else "folded by halves"
    for name, build in FAMILIES.items():
        if canonical(build(range(count))) == tree:
            return name
    blocked = (_blocked(tree, count, width) for width in range(2, count))
    return next((each for each in blocked if each), None)


def _blocked(tree: Tree, count: int, width: int) -> str | None:
    blocks = [list(range(start, min(start + width, count))) for start in range(0, count, width)]
    lanes = [list(range(start, count, width)) for start in range(width)]
    for kind, parts in ((f"blocks of {width}", blocks), (f"{width} lanes", lanes)):
        for inner, build_inner in FAMILIES.items():
            sums = [build_inner(part) for part in parts]
            for outer, build_outer in FAMILIES.items():
                if canonical(build_outer(sums)) == tree:
                    return f"{kind}, each {inner}; these {outer}"
    return None


def notation(tree: Tree) -> str:
    """Nested parentheses, each a step of additions; cut where it is long."""
    text = _nested(tree)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."


def _nested(tree: Tree) -> str:
    return str(tree) if isinstance(tree, int) else f"({' '.join(_nested(part) for part in tree)})"
