"""The verdict on a drifting case in plain words, from what all ranks counted. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.comparing.drift import Drift
from harness.comparing.tally import Tally, merge
from harness.diagnosis.causes import OWN_COUNT, disagreement_causes, factor_causes, offset_causes
from harness.diagnosis.patterns import Fit, Pattern, fit, fit_local_groups, fit_offset, is_constant_factor
from harness.diagnosis.stage_order import NAMES, STAGE_PREFIX, FirstStage, first_stage, in_order
from harness.diagnosis.whereabouts import Whereabouts, whereabouts
from reports.diagnosis import Diagnosis

Place = tuple[int, int]
PLURAL = ("active tokens", "advantages", "token terms", "clip counts")
AGAIN = " (run "
"""Behind the name of a quantity of a repeated run, with its number."""
PLAIN = (Pattern.ROUNDING, Pattern.UNKNOWN)
FIRST = (Pattern.NON_FINITE, Pattern.STD, Pattern.LOCAL_GROUPS, Pattern.OFFSET, Pattern.MOVED)
"""Patterns that name their cause, whichever stage shows them."""


@dataclass(frozen=True)
class Evidence:
    """One quantity as all ranks saw it: (rank, drift), a rank being (tp_rank, dp_rank)."""

    name: str
    seen: tuple[tuple[Place, Drift], ...]

    @property
    def drifted(self) -> list[tuple[Place, Drift]]:
        """Ranks whose part or copy differs."""
        return [(place, drift) for place, drift in self.seen if drift.mismatched]

    @cached_property
    def tally(self) -> Tally | None:
        """The tally of the whole quantity: of each part that of the rank that saw the most."""
        worst: dict[tuple[int, ...], Drift] = {}
        for _, drift in self.drifted:
            if drift.shard not in worst or drift.mismatched > worst[drift.shard].mismatched:
                worst[drift.shard] = drift
        parts = [drift.tally for drift in worst.values() if drift.tally is not None]
        return merge(parts) if parts else None

    @cached_property
    def telling(self) -> list[tuple[Place, Tally]]:
        """Of each rank that saw any, the elements that no rounding explains; all of them where none are such."""
        tallies = [(place, drift.tally) for place, drift in self.drifted if drift.tally is not None]
        gross = [(place, tally.gross) for place, tally in tallies if tally.gross is not None]
        return gross or tallies

    @cached_property
    def fit(self) -> Fit:
        """The pattern of the quantity."""
        if self.tally is None:
            return Fit(Pattern.UNKNOWN, detail=self._shapes())
        if self.own_values:
            words = ", ".join(f"{value:.6g} on dp {dp}" for dp, value in list(self.own_values.items())[:8])
            return Fit(Pattern.DISAGREE, detail=f": {words}")
        if self.name == "token_logp" and (offset := fit_offset(self.tally.gross or self.tally)) is not None:
            return offset
        if self.name == "advantages" and (local := fit_local_groups(self.tally.gross or self.tally)) is not None:
            return local
        found = fit(self.tally)
        if found.pattern is Pattern.UNKNOWN and (factors := self._rank_factors()):
            words = ", ".join(f"{factor:.6g} on dp {dp}" for dp, factor in sorted(factors.items()))
            return Fit(Pattern.RANK_FACTOR, detail=f": {words}")
        return found

    @cached_property
    def own_values(self) -> dict[int, float]:
        """A number that all should share, by DP rank, where each DP rank has a value of its own; else nothing."""
        if any(drift.elements != 1 or drift.shard or not drift.floating for _, drift in self.seen):
            return {}
        values = {dp: drift.got for (_, dp), drift in self.drifted if drift.got}
        found = {dp: float(got) for dp, got in sorted(values.items())}
        differ = len(set(found.values())) == len(found) > 1 and all(map(math.isfinite, found.values()))
        return found if differ and len(found) == len({dp for (_, dp), _ in self.seen}) else {}

    def _shapes(self) -> str:
        """What stands in for a pattern where tensors of different shapes or dtypes were not compared."""
        odd = [drift for _, drift in self.drifted if drift.first is None]
        return f": expected {odd[0].expected}, got {odd[0].got}" if odd else ""

    def _rank_factors(self) -> dict[int, float]:
        """A constant factor of each DP rank's part; nothing where a part has none."""
        by_rank: dict[int, list[Tally]] = {}
        for (_, dp), tally in self.telling if self.seen[0][1].shard else []:
            by_rank.setdefault(dp, []).append(tally)
        merged = {dp: merge(parts) for dp, parts in by_rank.items()}
        if len(merged) < 2 or not all(is_constant_factor(each.factor, each.eps) for each in merged.values()):
            return {}
        return {dp: each.factor.mean for dp, each in merged.items()}


def gather_evidence(ranks: Iterable[tuple[Place, Sequence[Drift]]]) -> dict[str, Evidence]:
    """The evidence on every compared quantity, by name, in the order of the stages."""
    found: dict[str, list[tuple[Place, Drift]]] = {}
    for place, drifts in ranks:
        for drift in drifts:
            found.setdefault(drift.name, []).append((place, drift))
    return {name: Evidence(name, tuple(found[name])) for name in in_order(found)}


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
    likely = _likely(found, layout, main, loss_agrees=_agrees(evidence, "loss"))
    return Diagnosis(
        pattern=found.pattern.value,
        words=_unrepeated(drifting)
        + _words(_shown(main.name), found, where, stage, _verb(stage, evidence))
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
        {name: bool(each.drifted) and (rounding or not _rounds(each)) for name, each in evidence.items()}
    )


def _rounds(evidence: Evidence) -> bool:
    return bool(evidence.drifted) and evidence.fit.pattern is Pattern.ROUNDING


def _agrees(evidence: Mapping[str, Evidence], name: str) -> bool:
    return name in evidence and (not evidence[name].drifted or _rounds(evidence[name]))


def _unrepeated(drifting: Mapping[str, Evidence]) -> str:
    """What comes before all else: runs of one and the same layout that differ."""
    again = [name for name in drifting if AGAIN in name]
    return f"does not repeat: runs of one layout differ in {again[0].partition(AGAIN)[0]}; " if again else ""


def _verb(stage: FirstStage | None, evidence: Mapping[str, Evidence]) -> str:
    """Of the inputs of the stage."""
    inputs = stage.inputs if stage else ()
    rounded = any(NAMES.get(name) in inputs and _rounds(each) for name, each in evidence.items())
    verb = "agrees" if len(inputs) == 1 and inputs[0] not in PLURAL else "agree"
    return f"{verb} but for rounding" if rounded else verb


def _words(name: str, found: Fit, where: Whereabouts | None, stage: FirstStage | None, verb: str) -> str:
    words = f"{found} in {name}"
    if where and found.pattern is where.pattern:
        words = f"{where.words} in {name}, without a known pattern"
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


def _likely(found: Fit, layout: Place, main: Evidence, *, loss_agrees: bool) -> tuple[str, ...]:
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
