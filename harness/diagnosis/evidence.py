"""What all ranks counted of one drifting quantity, and the pattern that it fits. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.comparing.drift import Drift
from harness.comparing.tally import Tally, merge
from harness.diagnosis.patterns import Fit, Pattern, fit, fit_local_groups, fit_offset, is_constant_factor
from harness.diagnosis.stage_order import in_order

Place = tuple[int, int]


@dataclass(frozen=True)
class Evidence:
    """One quantity as all ranks saw it: (rank, drift), a rank being (tp_rank, dp_rank)."""

    name: str
    seen: tuple[tuple[Place, Drift], ...]

    @property
    def is_rounding(self) -> bool:
        """Whether it drifts, and another order of sums explains all of it."""
        return bool(self.drifted) and self.fit.pattern is Pattern.ROUNDING

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
