"""What one rank reports of one case, as JSON. Imports no diagnosis, which only the rank that writes needs."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from harness.comparing.drift import Drift


class RankOutcome(BaseModel):
    """One rank's part: what it compared, or the error that refused the call, or why there was
    nothing to do. Times are in seconds.

    `stages` are comparisons of what the op shows between its inputs and its quantities; they only explain.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tp_rank: int
    dp_rank: int
    drifts: tuple[Drift, ...] = ()
    stages: tuple[Drift, ...] = ()
    error: tuple[str, str] | None = None
    inconclusive: str | None = None
    skipped: str | None = None
    notes: tuple[str, ...] = ()
    seed: int | None = None
    seconds: float = 0.0

    @property
    def has_numbers(self) -> bool:
        """Whether the op was run and gave what could be compared."""
        return self.error is None and self.skipped is None


def have_drifted(outcomes: Iterable[RankOutcome]) -> bool:
    """Whether any rank saw a difference."""
    return any(drift.mismatched for outcome in outcomes for drift in outcome.drifts)
