"""The verdict on a drifting case in plain words, from what all ranks counted. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from harness.diagnosis.evidence import Evidence, Place
from harness.diagnosis.patterns import Fit, Pattern
from harness.diagnosis.sentence import described, likely_causes, unrepeated, verb_of
from harness.diagnosis.stage_order import FirstStage, first_stage
from harness.diagnosis.whereabouts import whereabouts
from reports.diagnosis import Diagnosis

PLAIN = (Pattern.ROUNDING, Pattern.UNKNOWN)
FIRST = (Pattern.NON_FINITE, Pattern.STD, Pattern.LOCAL_GROUPS, Pattern.OFFSET, Pattern.MOVED)
"""Patterns that name their cause, whichever stage shows them."""


def diagnose(evidence: Mapping[str, Evidence], layout: Place) -> Diagnosis | None:
    """Why the case drifts; None when it does not."""
    drifting = {name: each for name, each in evidence.items() if each.drifted}
    if not drifting:
        return None
    main = _main(drifting)
    stage = _stage(evidence, main)
    where = whereabouts([place for place, _ in main.seen], main.telling, sharded=bool(main.seen[0][1].shard))
    found = main.fit
    if found.pattern is Pattern.UNKNOWN and where is not None:
        found = Fit(where.pattern)
    if found.pattern is Pattern.ROUNDING and where is not None and where.pattern is Pattern.SEQUENCES:
        where = None  # which sums happen to round otherwise says nothing
    likely = likely_causes(found, layout, main, loss_agrees=_agrees(evidence, "loss"))
    return Diagnosis(
        pattern=found.pattern.value,
        words=unrepeated(drifting)
        + described(main.name, found, where, stage, verb_of(stage, evidence))
        + (f" (likely {'; or '.join(likely)})" if likely else ""),
        stage=stage.name if stage else None,
        inputs=stage.inputs if stage else (),
        unseen=stage.unseen if stage else (),
        where=where.words if where else None,
        likely=likely,
    )


def _main(drifting: Mapping[str, Evidence]) -> Evidence:
    """The quantity that explains the case: a named cause, then any pattern, then what is not mere rounding."""
    fits = {name: each.fit.pattern for name, each in drifting.items()}
    for wanted in FIRST:
        named = [name for name, pattern in fits.items() if pattern is wanted]
        if named:
            return drifting[named[0]]
    telling = [name for name, pattern in fits.items() if pattern not in PLAIN]
    unknown = [name for name, pattern in fits.items() if pattern is Pattern.UNKNOWN]
    unknown.sort(key=lambda name: not drifting[name].seen[0][1].floating)
    return drifting[[*telling, *unknown, *fits][0]]


def _stage(evidence: Mapping[str, Evidence], main: Evidence) -> FirstStage | None:
    """The first stage that goes wrong as `main` does: another order of a sum is no cause of more than that."""
    rounding = main.fit.pattern is Pattern.ROUNDING
    return first_stage(
        {name: bool(each.drifted) and (rounding or not each.is_rounding) for name, each in evidence.items()}
    )


def _agrees(evidence: Mapping[str, Evidence], name: str) -> bool:
    return name in evidence and (not evidence[name].drifted or evidence[name].is_rounding)
