"""A layout as text: TxD, such as 4x1."""

from __future__ import annotations

import re

_LAYOUT_PATTERN = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
MOST_RANKS = 65536


def layout_of(text: str) -> tuple[int, int]:
    """The (tp, dp) of a layout written TxD. Raises ValueError."""
    match = _LAYOUT_PATTERN.fullmatch(text.strip().lower())
    if match is None or max(map(int, match.groups())) > MOST_RANKS:
        raise ValueError(f"layouts written TxD, such as 4x1 (TP degree x DP degree, both from 1 to {MOST_RANKS})")
    tp, dp = match.groups()
    return int(tp), int(dp)
