"""Two reports: their contracts, their environments and the numbers of the cases that both hold."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from harness.inspection.comparison import LONE_WEIGHT, Change, Comparison, changes, lone_changes, one_sided, ranked
from reports import CaseResult, QuantityResult, Report

BASELINE_WEIGHT = 1e3
"""Above what drifts, which is measured against the baseline."""
SHOWN = 12
SEVERITY = {
    "match": 0,
    "skipped": 1,
    "inconclusive": 2,
    "caught": 0,
    "refused": 4,
    "missed": 4,
    "drift": 3,
    "failed": 5,
}


def compare_reports(one: Report, other: Report) -> Comparison:
    """What changed from `one` to `other`."""
    mine, theirs = _by_name(one.cases), _by_name(other.cases)
    shared = [name for name in mine if name in theirs]
    numbers = [change for name in shared for change in _case_changes(name, mine[name], theirs[name])]
    numbers += _baseline_changes([(mine[name], theirs[name]) for name in shared])
    numbers += lone_changes(mine, theirs)
    return Comparison(
        contract=changes({"op": _ops(one), **one.contract}, {"op": _ops(other), **other.contract}),
        environment=changes(_surroundings(one), _surroundings(other)),
        numbers=ranked(numbers),
        compared=sum(bool(mine[name].quantities and theirs[name].quantities) for name in shared),
        one_sided=one_sided(mine, theirs),
        bits=sum(_has_digests(mine[name]) and _has_digests(theirs[name]) for name in shared),
    )


def _has_digests(case: CaseResult) -> bool:
    return any(quantity.baseline_digest for quantity in case.quantities)


def _by_name(cases: Iterable[CaseResult]) -> dict[str, CaseResult]:
    return {f"{case.name} ({case.layout}, {_drawn(case)})": case for case in cases}


def _drawn(case: CaseResult) -> str:
    """The batch of a case, and its seed where it has one: a capture has none."""
    return case.batch if case.seed is None else f"{case.batch}, seed {case.seed}"


def _ops(report: Report) -> str:
    return ", ".join(dict.fromkeys(case.op for case in report.cases if not case.expect.is_planted))


def _surroundings(report: Report) -> dict[str, Any]:
    return {**report.environment, "transport": ", ".join(
        dict.fromkeys(case.transport for case in report.cases if case.transport))}  # fmt: skip


def _case_changes(name: str, one: CaseResult, other: CaseResult) -> Iterable[Change]:
    if one.verdict is not other.verdict:
        weight = 1e9 * abs(SEVERITY.get(other.verdict, 0) - SEVERITY.get(one.verdict, 0))
        yield Change(name, one.verdict.value, other.verdict.value, weight)
    mine, theirs = ({each.name: each for each in case.quantities} for case in (one, other))
    for quantity in mine.keys() & theirs.keys():
        before, after = mine[quantity], theirs[quantity]
        if _size(before) != _size(after):
            weight = abs(math.log2(1 + after.max_ulp) - math.log2(1 + before.max_ulp)) + abs(
                _share(after) - _share(before)
            )
            yield Change(f"{name} {quantity}", _size(before), _size(after), weight)
    for quantity in mine.keys() ^ theirs.keys():
        words = ("there", "nothing") if quantity in mine else ("nothing", "there")
        yield Change(f"{name} {quantity}", *words, LONE_WEIGHT)


def _baseline_changes(pairs: Iterable[tuple[CaseResult, CaseResult]]) -> list[Change]:
    """Quantities whose bits on one rank are not the same in both reports, once a batch and seed."""
    found: dict[str, Change] = {}
    for one, other in pairs:
        theirs = {each.name: each.baseline_digest for each in other.quantities}
        for each in one.quantities:
            before, after = each.baseline_digest, theirs.get(each.name)
            if before and after and before != after:
                where = f"baseline {_drawn(one)}, {each.name}"
                found[where] = Change(where, f"bits {before[:SHOWN]}", f"bits {after[:SHOWN]}", BASELINE_WEIGHT)
    return list(found.values())


def _size(quantity: QuantityResult) -> str:
    if not quantity.mismatched:
        return "no difference"
    return f"{quantity.mismatched} of {quantity.elements} differ, up to {quantity.max_ulp} ULP"


def _share(quantity: QuantityResult) -> float:
    return quantity.mismatched / quantity.elements if quantity.elements else 0.0
