"""What a caller of `verify_loss` may ask for, judged at once. Never imports torch."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from grpo_contract import InputError, Problem
from harness.settings.layout_text import layout_of
from harness.settings.setting_types import MOST_COUNTED

Layout = tuple[int, int]
LARGEST_SEED = 2**32 - 1
_LAYOUT = "(tp, dp) or TxD, such as (4, 1) or 4x1, both at least 1"


def checked_layouts(layouts: Any, repeat: Any, seed: Any) -> list[Layout]:
    """The layouts as (tp, dp). Raises one InputError with everything wrong with any of the three."""
    is_several = isinstance(layouts, Sequence) and not isinstance(layouts, str)
    given = list(layouts) if is_several else []
    found = [_pair(each) for each in given]
    problems = [] if is_several else [Problem("input.layouts", "layouts", "a list of layouts", repr(layouts))]
    problems += [
        Problem("input.layouts", f"layouts[{index}]", _LAYOUT, repr(given[index]))
        for index, pair in enumerate(found)
        if pair is None
    ]
    if not 1 <= (_whole(repeat) or 0) <= MOST_COUNTED:
        expected = f"an integer from 1 to {MOST_COUNTED}"
        problems.append(Problem("input.repeat", "repeat", expected, repr(repeat)))
    if not 0 <= (-1 if (number := _whole(seed)) is None else number) <= LARGEST_SEED:
        problems.append(Problem("input.seed", "seed", f"an integer from 0 to {LARGEST_SEED}", repr(seed)))
    if problems:
        raise InputError(problems)
    return [pair for pair in found if pair is not None]


def _pair(layout: Any) -> Layout | None:
    if isinstance(layout, str):
        try:
            return layout_of(layout)
        except ValueError:
            return None
    if not isinstance(layout, list | tuple) or len(layout) != 2:
        return None
    tp, dp = (_whole(part) for part in layout)
    return (tp, dp) if tp is not None and dp is not None and min(tp, dp) >= 1 else None


def _whole(value: Any) -> int | None:
    """An integer of any make; True and 2.0 are none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
