"""What ranks tell each other when a case is over."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from harness.ranks.exchange import gather_texts
from harness.ranks.rank_outcome import RankOutcome


class RankReport(BaseModel):
    """What a rank sends when a case is over: its outcome if it took part, the batch's power if it measured it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: RankOutcome | None = None
    power: dict[str, float] = {}


def gather_reports(report: RankReport) -> tuple[list[RankOutcome], dict[str, float]]:
    """The outcomes of all ranks that take part and the power that one of them measured, on every rank."""
    reports = [RankReport.model_validate_json(text) for text in gather_texts(report.model_dump_json())]
    power = {name: chance for each in reports for name, chance in each.power.items()}
    return [each.outcome for each in reports if each.outcome is not None], power
