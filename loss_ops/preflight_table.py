"""The table of a preflight: the records of all ranks of a mesh, and what stands against them."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from grpo_contract import GRPOVerifyError, PreflightError, Problem, error_from

Record = dict[str, Any]
MASK = "completion_mask"


@lru_cache(maxsize=8)
def judge(table: str, dp: int) -> GRPOVerifyError | None:
    """Judge the records of all ranks, one JSON line each, `dp` lines a TP rank; None when all agree.

    Ranks that share a process judge once.
    """
    records: list[Record] = [json.loads(line) for line in table.splitlines()]
    problems: dict[Problem, None] = {}
    for record in records:
        problems.update({Problem(**fields): None for fields in record["problems"]})
    if problems:
        return error_from(problems)
    found = [*_misplaced(records, dp), *_disagreements(records), *_digest_disagreements(records)]
    return PreflightError(found) if found else None


def _misplaced(records: list[Record], dp: int) -> list[Problem]:
    """Ranks whose sharding names another place than their groups give them."""
    places = [divmod(index, dp) for index in range(len(records))]
    return [
        Problem("preflight.place", f"sharding of {_place(record)}", f"tp_rank {place[0]}, dp_rank {place[1]}",
                f"tp_rank {record['tp_rank']}, dp_rank {record['dp_rank']}")
        for record, place in zip(records, places, strict=True)
        if (record["tp_rank"], record["dp_rank"]) != place
    ]  # fmt: skip


def _disagreements(records: list[Record]) -> list[Problem]:
    first, found = records[0], []
    for record in records[1:]:
        mine, theirs = record["fields"], first["fields"]
        found += [
            Problem(
                "preflight.field",
                f"{name} on {_place(record)}",
                f"{theirs.get(name)} as on {_place(first)}",
                str(mine.get(name)),
            )
            for name in sorted(mine.keys() | theirs.keys())
            if json.dumps(mine.get(name)) != json.dumps(theirs.get(name))  # as the summaries compare them
        ]
        if record["has_reference"] != first["has_reference"]:
            found.append(_reference_problem(record, first))
    return found


def _reference_problem(record: Record, first: Record) -> Problem:
    words = {True: "reference logits", False: "no reference logits"}
    expected = f"{words[first['has_reference']]} as on {_place(first)}"
    return Problem(
        "preflight.reference", f"ref_logits on {_place(record)}", expected, words[record["has_reference"]]
    )


def _digest_disagreements(records: list[Record]) -> list[Problem]:
    first_of_dp: dict[int, Record] = {}
    found = []
    for record in records:
        first = first_of_dp.setdefault(record["dp_rank"], record)
        found += [
            Problem(
                "preflight.digest",
                f"{name} on {_place(record)}",
                f"sha256 {value[:16]} as on {_place(first)}",
                f"sha256 {record['digests'].get(name, '')[:16]}",
            )
            for name, value in _differing(first["digests"], record["digests"]).items()
        ]
    return found


def _differing(expected: dict[str, str], got: dict[str, str]) -> dict[str, str]:
    """Inputs whose digests differ. The others are taken where the mask says: another mask explains them all."""
    found = {name: value for name, value in expected.items() if got.get(name) != value}
    return {MASK: found[MASK]} if MASK in found else found


def _place(record: Record) -> str:
    return f"rank (tp {record['tp_rank']}, dp {record['dp_rank']})"
