"""A report that stays small however much drifts: only the first pictures of where are kept."""

from collections.abc import Sequence

from reports.cases import CaseResult, QuantityResult
from reports.ranking import worst_first

MOST_PICTURES = 100
"""Quantities of one report that keep their shares and their heat map; at most about 10 MB of JSON."""


def thinned(cases: Sequence[CaseResult]) -> list[CaseResult]:
    """Return the cases in their order; only the MOST_PICTURES most urgent quantities keep shares and heat map."""
    if sum(_has_picture(quantity) for case in cases for quantity in case.quantities) <= MOST_PICTURES:
        return list(cases)
    room, kept = MOST_PICTURES, {}
    for case in worst_first(cases):
        pictures = sum(map(_has_picture, case.quantities))
        if pictures > room:
            kept[id(case)] = case.model_copy(update={"quantities": tuple(map(_without_picture, case.quantities))})
        room = max(0, room - pictures)
    return [kept.get(id(case), case) for case in cases]


def _has_picture(quantity: QuantityResult) -> bool:
    return quantity.heat_map is not None or quantity.shares is not None


def _without_picture(quantity: QuantityResult) -> QuantityResult:
    if not _has_picture(quantity):
        return quantity
    return quantity.model_copy(update={"heat_map": None, "shares": None})
