"""The sentence on a drift: its parts in words. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from harness.diagnosis.causes import OWN_COUNT, disagreement_causes, factor_causes, offset_causes
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.patterns import Fit, Pattern
from harness.diagnosis.stage_order import NAMES, STAGE_PREFIX, FirstStage
from harness.diagnosis.whereabouts import Whereabouts

PLURAL = ("active tokens", "advantages", "token terms", "clip counts")
AGAIN = " (run "
"""Behind the name of a quantity of a repeated run, with its number."""


def unrepeated(drifting: Iterable[str]) -> str:
    """What comes before all else: runs of one and the same layout that differ."""
    again = [name for name in drifting if AGAIN in name]
    return f"does not repeat: runs of one layout differ in {again[0].partition(AGAIN)[0]}; " if again else ""


def verb_of(stage: FirstStage | None, evidence: Mapping[str, Evidence]) -> str:
    """Of the inputs of the stage."""
    inputs = stage.inputs if stage else ()
    rounded = any(NAMES.get(name) in inputs and each.is_rounding for name, each in evidence.items())
    verb = "agrees" if len(inputs) == 1 and inputs[0] not in PLURAL else "agree"
    return f"{verb} but for rounding" if rounded else verb


def described(name: str, found: Fit, where: Whereabouts | None, stage: FirstStage | None, verb: str) -> str:
    """Pattern, quantity, place and first stage; `verb` is that of the inputs of the stage."""
    words = f"{found} in {_shown(name)}"
    if where and found.pattern is where.pattern:
        words = f"{where.words} in {_shown(name)}, without a known pattern"
    elif where:
        words += f", {where.words}"
    if stage is None:
        return words
    if stage.inputs:
        return f"{words}; first stage to differ: {stage.name}, while {_listed(stage.inputs)} {verb}"
    return f"{words}; first stage to differ: {stage.name}"


def _shown(name: str) -> str:
    """A stage by its name, a quantity by its own."""
    return NAMES[name] if name.startswith(STAGE_PREFIX) and name in NAMES else name


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def likely_causes(found: Fit, layout: tuple[int, int], main: Evidence, *, loss_agrees: bool) -> tuple[str, ...]:
    """What usually stands behind the pattern `found` in `main`, most likely first."""
    tp, dp = layout
    if found.pattern is Pattern.DISAGREE:
        return disagreement_causes(list(main.own_values.values()), float(main.drifted[0][1].expected))
    if found.pattern is Pattern.LOCAL_GROUPS:
        return ("each rank normalizes over the rewards that it holds",)
    if found.value is None or not math.isfinite(found.value):
        return (OWN_COUNT,) if found.pattern is Pattern.RANK_FACTOR else ()
    if found.pattern is Pattern.OFFSET:
        return offset_causes(found.value, tp)
    return factor_causes(found.value, tp, dp, loss_agrees=loss_agrees)
