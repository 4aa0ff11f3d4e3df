"""Where a drift is confined to: ranks or sequences, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.diagnosis.patterns import Pattern
from harness.drift import Drift

Place = tuple[int, int]
MOST_NAMED = 8


@dataclass(frozen=True)
class Whereabouts:
    """A confinement: to ranks or to sequences."""

    pattern: Pattern
    words: str


def whereabouts(seen: Sequence[tuple[Place, Drift]]) -> Whereabouts | None:
    """The ranks, or else the sequences, to which the drift of a quantity is confined; None when to none."""
    bad = {place for place, drift in seen if drift.mismatched}
    good = {place for place, _ in seen} - bad
    sharded = any(drift.shard for _, drift in seen)
    if good and (words := _ranks(bad, good, sharded)):
        return Whereabouts(Pattern.RANK, words)
    return _sequences(seen)


def _ranks(bad: set[Place], good: set[Place], sharded: bool) -> str | None:
    thing = "shard" if sharded else "copy"
    if len(bad) == 1:
        ((tp, dp),) = bad
        return f"only rank tp={tp} dp={dp}'s {thing}"
    for axis, label in ((0, "TP"), (1, "DP")):
        mine = {place[axis] for place in bad}
        if len(mine) == 1 and not mine & {place[axis] for place in good}:
            return f"only {label} rank {next(iter(mine))}'s {'shards' if sharded else 'copies'}"
    named = ", ".join(f"tp={tp} dp={dp}" for tp, dp in sorted(bad)[:MOST_NAMED])
    return f"only {len(bad)} of {len(bad) + len(good)} ranks' {thing}s ({named})"


def _sequences(seen: Sequence[tuple[Place, Drift]]) -> Whereabouts | None:
    bins = [drift.tally.sequence for _, drift in seen if drift.tally and drift.tally.sequence]
    if not bins or any(each.width > 1 for each in bins):
        return None
    affected = sorted({s for _, drift in seen for s in drift.sequences})
    held = {each.first + k for each in bins for k in range(len(each.counts))}
    if not affected or len(affected) == len(held) or len(affected) > max(1, len(held) // 2):
        return None
    named = ", ".join(map(str, affected[:MOST_NAMED]))
    more = f" and {len(affected) - MOST_NAMED} more" if len(affected) > MOST_NAMED else ""
    noun = "sequence" if len(affected) == 1 else "sequences"
    return Whereabouts(Pattern.SEQUENCES, f"only {noun} {named}{more} of {len(held)}")
