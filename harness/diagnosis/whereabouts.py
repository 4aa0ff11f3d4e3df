"""Where a drift is confined to: ranks or sequences, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.comparing.bins import merge_bins
from harness.comparing.tally import Tally
from harness.diagnosis.patterns import Pattern

Place = tuple[int, int]
MOST_NAMED = 8


@dataclass(frozen=True)
class Whereabouts:
    """A confinement: to ranks or to sequences."""

    pattern: Pattern
    words: str


def whereabouts(
    ranks: Sequence[Place], telling: Sequence[tuple[Place, Tally]], *, sharded: bool
) -> Whereabouts | None:
    """The ranks, or else the sequences, to which the telling elements are confined; None when to none."""
    bad = {place for place, _ in telling}
    good = set(ranks) - bad
    by_rank = _ranks(bad, good, sharded) if good and bad else None
    by_sequence = _sequences([tally for _, tally in telling])
    # Columns are a rank's alone; rows are its sequences', and a few of them say more than their owner does.
    cut_by_tp = any((tp, dp) in good for tp, _ in ranks for _, dp in bad)
    if by_rank and (cut_by_tp or by_sequence is None):
        return Whereabouts(Pattern.RANK, by_rank)
    return by_sequence


def _ranks(bad: set[Place], good: set[Place], sharded: bool) -> str | None:
    thing = "shard" if sharded else "copy"
    if len(bad) == 1:
        ((tp, dp),) = bad
        return f"only rank tp={tp} dp={dp}'s {thing}"
    many = "shards" if sharded else "copies"
    for axis, label in ((0, "TP"), (1, "DP")):
        mine = {place[axis] for place in bad}
        if len(mine) == 1 and not mine & {place[axis] for place in good}:
            return f"only {label} rank {next(iter(mine))}'s {many}"
    named = ", ".join(f"tp={tp} dp={dp}" for tp, dp in sorted(bad)[:MOST_NAMED])
    return f"only {len(bad)} of {len(bad) + len(good)} ranks' {many} ({named})"


def _sequences(tallies: Sequence[Tally]) -> Whereabouts | None:
    bins = [tally.sequence for tally in tallies if tally.sequence is not None]
    if not bins or any(each.width > 1 for each in bins):
        return None
    whole = merge_bins(bins)
    held = [whole.first + k for k, size in enumerate(whole.sizes) if size]
    affected = [whole.first + k for k, count in enumerate(whole.counts) if count]
    if len(affected) > max(1, len(held) // 2) or len(affected) == len(held):
        return None
    named = ", ".join(map(str, affected[:MOST_NAMED]))
    more = f" and {len(affected) - MOST_NAMED} more" if len(affected) > MOST_NAMED else ""
    noun = "sequence" if len(affected) == 1 else "sequences"
    return Whereabouts(Pattern.SEQUENCES, f"only {noun} {named}{more}")
