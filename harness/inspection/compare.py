"""`grpo-verify compare A B`: two reports or two snapshots, what changed around them and then in their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_contract import Problem
from grpo_contract.fingerprint import flatten
from harness.comparing.entry import Entry
from harness.settings.out_folder import REPORT
from harness.settings.request_error import RequestError
from harness.system.regular_file import read_regular
from reports import CaseResult, QuantityResult, Report, ReportFormatError

LONE_WEIGHT = 1e6
"""Above every change of size, below every change of a verdict."""
BASELINE_WEIGHT = 1e3
"""Above what drifts, which is measured against the baseline."""
SHOWN = 12
FIXES_BITS = ("device", "device_name", "torch", "cuda", "triton", "num_threads", "float32_matmul_precision")
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


@dataclass(frozen=True)
class Change:
    """One thing that is not the same; `weight` ranks it, the heaviest first."""

    where: str
    before: str
    after: str
    weight: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """What changed in contract and environment, what in numbers, and in how many places numbers were compared."""

    contract: tuple[Change, ...]
    environment: tuple[Change, ...]
    numbers: tuple[Change, ...]
    compared: int
    one_sided: tuple[str, ...] = ()
    bits: int = 0
    """In how many places the numbers themselves were compared, not only each side's own layouts."""

    @property
    def other_build(self) -> bool:
        """Whether the two ran on builds or devices whose bits are not promised to agree."""
        return any(each.where.rpartition(".")[2] in FIXES_BITS for each in self.environment)

    @property
    def status(self) -> int:
        """0 the numbers agree, 1 they do not or one side has more of them, 3 nothing could be compared."""
        if not self.compared:
            return 3
        return 1 if self.numbers else 0


Subject = Report | Sequence[Entry]


def load_subject(path: Path) -> Subject:
    """The report in a file or an --out folder, or the entries of a snapshot folder. Raises RequestError."""
    if path.is_dir() and not (path / REPORT).exists():
        from harness.snapshots.store import read_entries  # needs torch's neighbours; a report does not

        entries = read_entries(path)
        if entries:
            return entries
        raise RequestError(
            Problem("request.compare", str(path), "a report or a snapshot", "a folder with neither")
        )
    file = path / REPORT if path.is_dir() else path
    try:
        return Report.from_json(read_regular(file))
    except (OSError, UnicodeDecodeError, ReportFormatError) as error:
        got = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RequestError(Problem("request.compare", str(path), "a report or a snapshot", got)) from None


def compare_subjects(one: Subject, other: Subject, folders: tuple[Path, Path]) -> Comparison:
    """Compare two of a kind. Raises RequestError for a report against a snapshot."""
    if isinstance(one, Report) and isinstance(other, Report):
        return _compare_reports(one, other)
    if isinstance(one, Report) or isinstance(other, Report):
        got = "a report and a snapshot"
        raise RequestError(Problem("request.compare", "A and B", "two reports or two snapshots", got))
    return _compare_entries(one, other, folders)


def _compare_reports(one: Report, other: Report) -> Comparison:
    mine, theirs = _by_name(one.cases), _by_name(other.cases)
    shared = [name for name in mine if name in theirs]
    numbers = [change for name in shared for change in _case_changes(name, mine[name], theirs[name])]
    numbers += _baseline_changes([(mine[name], theirs[name]) for name in shared])
    numbers += _lone_changes(mine, theirs)
    return Comparison(
        contract=_changes({"op": _ops(one), **one.contract}, {"op": _ops(other), **other.contract}),
        environment=_changes(_surroundings(one), _surroundings(other)),
        numbers=_ranked(numbers),
        compared=sum(bool(mine[name].quantities and theirs[name].quantities) for name in shared),
        one_sided=_one_sided(mine, theirs),
        bits=sum(_has_digests(mine[name]) and _has_digests(theirs[name]) for name in shared),
    )


def _has_digests(case: CaseResult) -> bool:
    return any(quantity.baseline_digest for quantity in case.quantities)


def _by_name(cases: Iterable[CaseResult]) -> dict[str, CaseResult]:
    return {f"{case.name} ({case.layout}, {case.batch}, seed {case.seed})": case for case in cases}


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
                where = f"baseline {one.batch}, seed {one.seed}, {each.name}"
                found[where] = Change(where, f"bits {before[:SHOWN]}", f"bits {after[:SHOWN]}", BASELINE_WEIGHT)
    return list(found.values())


def _size(quantity: QuantityResult) -> str:
    if not quantity.mismatched:
        return "no difference"
    return f"{quantity.mismatched} of {quantity.elements} differ, up to {quantity.max_ulp} ULP"


def _share(quantity: QuantityResult) -> float:
    return quantity.mismatched / quantity.elements if quantity.elements else 0.0


def _compare_entries(one: Sequence[Entry], other: Sequence[Entry], folders: tuple[Path, Path]) -> Comparison:
    from harness.snapshots.values import value_changes

    mine, theirs = {each.name: each for each in one}, {each.name: each for each in other}
    shared = [name for name in mine if name in theirs]
    numbers = []
    for name in shared:
        for quantity, words, weight in value_changes(mine[name], theirs[name], folders):
            numbers.append(Change(f"{name} {quantity}", *words, weight))
    numbers += _lone_changes(mine, theirs)
    return Comparison(
        contract=_changes(*({name: _said(held[name]) for name in shared} for held in (mine, theirs))),
        environment=_changes(*({name: held[name].key.environment for name in shared} for held in (mine, theirs))),
        numbers=_ranked(numbers),
        compared=len(shared),
        one_sided=_one_sided(mine, theirs),
        bits=len(shared),
    )


def _said(entry: Entry) -> dict[str, Any]:
    return {"op": entry.key.op, **entry.contract}


def _lone_changes(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Change]:
    """A case that one side lacks is no agreement."""
    return [*(Change(name, "there", "nothing", LONE_WEIGHT) for name in mine if name not in theirs),
            *(Change(name, "nothing", "there", LONE_WEIGHT) for name in theirs if name not in mine)]  # fmt: skip


def _one_sided(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, ...]:
    return (*(f"{name}: only in A" for name in mine if name not in theirs),
            *(f"{name}: only in B" for name in theirs if name not in mine))  # fmt: skip


def _changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Change, ...]:
    mine, theirs = flatten(dict(one)), flatten(dict(other))
    names = sorted(mine.keys() | theirs.keys())
    return tuple(
        Change(name, _shown(mine.get(name)), _shown(theirs.get(name)))
        for name in names
        if mine.get(name) != theirs.get(name)
    )


def _ranked(changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=lambda change: (-change.weight, change.where)))


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
