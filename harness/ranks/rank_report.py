"""What ranks tell each other when a case is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from grpo_contract import Problem
from harness.ranks.exchange import gather_texts
from harness.ranks.rank_outcome import RankOutcome, have_drifted


class RankReport(BaseModel):
    """What a rank sends when a case is over: its outcome if it took part, the batch's power if it measured it.

    `baseline` are digests of what a foreign op gave on this rank at 1x1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: RankOutcome | None = None
    power: dict[str, float] = {}
    baseline: dict[str, str] = {}


def gather_reports(report: RankReport) -> tuple[list[RankOutcome], dict[str, float]]:
    """The outcomes of all ranks that take part and the power that one of them measured, on every rank.

    A rank on which the op gave something else at 1x1 than on the first of them has that as its error: each rank
    compares with a baseline of its own.
    """
    reports = [RankReport.model_validate_json(text) for text in gather_texts(report.model_dump_json())]
    power = {name: chance for each in reports for name, chance in each.power.items()}
    outcomes = [each.outcome for each in reports if each.outcome is not None]
    return outcomes if have_drifted(outcomes) else _with_one_baseline(reports), power


def _with_one_baseline(reports: Sequence[RankReport]) -> list[RankOutcome]:
    first = next((each.baseline for each in reports if each.baseline), {})
    return [
        _refused(each.outcome, each.baseline, first) if each.baseline not in ({}, first) else each.outcome
        for each in reports
        if each.outcome is not None
    ]


def _refused(outcome: RankOutcome, baseline: Mapping[str, str], first: Mapping[str, str]) -> RankOutcome:
    names = sorted(name for name in {*first, *baseline} if first.get(name) != baseline.get(name))
    got = (
        f"others on rank (tp {outcome.tp_rank}, dp {outcome.dp_rank}): the op depends on the rank that it runs on,"
        " or does not repeat"
    )
    problem = Problem("op.by_rank", f"{', '.join(names)} at 1x1", "the same bits on every rank", got)
    return outcome.model_copy(update={"error": (problem.code, str(problem))})
