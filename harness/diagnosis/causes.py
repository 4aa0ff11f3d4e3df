"""What usually stands behind a factor or an offset."""

from __future__ import annotations

import math
from collections.abc import Sequence

CLOSE = 1e-2


OWN_COUNT = "each rank divides by its own count, of tokens or of sequences"


def factor_causes(factor: float, tp: int, dp: int, *, loss_agrees: bool = False) -> tuple[str, ...]:
    """Likely causes of a constant factor in a layout tp x dp, most likely first.

    A divisor that is a rank's own shows in the loss too, which then does not agree.
    """
    found = []
    if dp > 1 and _is(factor, dp):
        own = "" if loss_agrees else ", or divided by a rank's own token count"
        found.append(f"dp size {dp}: summed over DP once too often{own}")
    if dp > 1 and _is(factor, 1 / dp):
        found.append(f"dp size {dp}: averaged over DP where a sum belongs")
    if tp > 1 and _is(factor, tp):
        found.append(f"tp size {tp}: every TP rank adds the whole")
    if tp > 1 and _is(factor, 1 / tp):
        found.append(f"tp size {tp}: divided by it once too often")
    if tp * dp > max(tp, dp) and _is(factor, tp * dp):
        found.append(f"world size {tp * dp}: summed over all ranks, not over one axis")
    return tuple(found) or _step_causes(factor)


def _step_causes(factor: float) -> tuple[str, ...]:
    larger = max(abs(factor), 1 / abs(factor)) if factor else 0.0
    if larger >= 2 and _is(larger, round(larger)):
        verb = "each counted whole" if abs(factor) > 1 else "divided by once too often"
        return (f"accumulation: {round(larger)} steps, {verb}",)
    return ("a divisor or scale differs: token count, number of sequences, temperature or grad_scale",)


def offset_causes(offset: float, tp: int) -> tuple[str, ...]:
    """Likely causes of a constant offset on log-probabilities."""
    if tp > 1 and _is(abs(offset), math.log(tp)):
        side = "fed as a shard" if offset < 0 else "taken for the whole"
        what = "the whole vocabulary" if offset < 0 else "a shard"
        return (f"log of tp size {tp}: {what} {side}",)
    return ("a constant added to every logit's normalizer: vocabulary padding, or a scale in the log-sum",)


def disagreement_causes(values: Sequence[float], expected: float) -> tuple[str, ...]:
    """Likely causes where each DP rank holds another value of what all should share."""
    if _is(sum(values), expected):
        return ("each rank keeps its own part of a sum: not summed over DP",)
    if _is(sum(values) / len(values), expected):
        return ("each rank keeps its own mean: not averaged over DP",)
    return (f"not reduced over DP, or {OWN_COUNT}",)


def _is(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= CLOSE * abs(wanted)
