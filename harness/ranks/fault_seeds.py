"""The seeds on which planted faults show, agreed on by all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable

from harness.launching.status import CaseRef, Phase, StatusWriter
from harness.planning.planned import Plan, PlannedCase
from harness.ranks.exchange import gather_texts

SEARCH = "search for the seeds of planted faults"
NO_SEED = "no seed was found on which this fault would show"


def is_searched(case: PlannedCase) -> bool:
    """Whether the case is a planted fault that needs a batch on which it shows."""
    return case.fault is not None and case.expect != "any" and case.seed is not None


def agreed_seeds(
    plan: Plan, rank: int, status: StatusWriter, pick: Callable[[PlannedCase], int | None]
) -> dict[int, int | None]:
    """The seeds of all planted faults by number of the case, each picked by one rank, and told to all."""
    faults = [case for case in plan.cases if case.skip is None and is_searched(case)]
    found: dict[int, int | None] = {}
    status.update(case=CaseRef(index=faults[0].index, name=SEARCH))
    for case in faults[rank :: plan.ranks]:
        status.update(phase=Phase.CASE)
        found[case.index] = pick(case)
    status.tick()
    texts = gather_texts(json.dumps(found))
    return {int(index): seed for text in texts for index, seed in json.loads(text).items()}
