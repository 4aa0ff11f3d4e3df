"""Preflight: before any other collective, every rank learns whether all ranks agree.

Each rank contributes a record, also when its own validation failed. Records are gathered over DP, that column
over TP, so that every rank holds the table of the whole mesh and all raise the same error. Records travel as
JSON bytes; nothing is unpickled.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from grpo_contract import GRPOVerifyError, PreflightError, Problem, error_from
from grpo_contract.fingerprint import flatten
from loss_ops.gather import Axis, Gather, Program
from loss_ops.loss_call import LossCall

Record = dict[str, Any]
PURPOSE = "preflight"


def record_of(call: LossCall, backend: str, problems: list[Problem], grad_scale: float = 1.0) -> Record:
    """What a rank says of itself: place, contract, mesh, backend, problems, and digests of shared inputs."""
    contract, sharding = call.contract, call.sharding
    own = {"sharding": sharding.mesh_content(), "backend": backend, "grad_scale": grad_scale}
    return {
        "tp_rank": sharding.tp_rank,
        "dp_rank": sharding.dp_rank,
        "fields": flatten({**contract.numeric_content(), **own}),
        "has_reference": call.ref_local_logits is not None,
        "problems": [problem.to_dict() for problem in problems],
        "digests": {} if problems else call.digests(),
    }


def preflight(record: Record, degrees: tuple[int, int], device: torch.device) -> Program[None]:
    """Exchange records and raise, on every rank alike, when one holds a problem or ranks disagree.

    Raises the error of the problems found (InputError, ContractError), else PreflightError naming rank, field
    and both values. `degrees` is (tp, dp).
    """
    column = yield from _gather_text(json.dumps(record), "dp", degrees[1], device)
    table = yield from _gather_text("\n".join(column), "tp", degrees[0], device)
    error = _judge("\n".join(table))
    if error is not None:
        raise type(error)(error.problems)


def _gather_text(text: str, axis: Axis, degree: int, device: torch.device) -> Program[list[str]]:
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)
    length = torch.tensor([len(data)], device=device)
    lengths = yield Gather(axis, length, (1,) * degree, PURPOSE)
    sizes = tuple(int(each) for each in lengths)
    received = yield Gather(axis, data, sizes, PURPOSE)
    return [_text(each) for each in received]


def _text(data: Tensor) -> str:
    return data.cpu().numpy().tobytes().decode()


@lru_cache(maxsize=8)
def _judge(table: str) -> GRPOVerifyError | None:
    """Judge the records of all ranks, one JSON line each; ranks that share a process judge once."""
    records: list[Record] = [json.loads(line) for line in table.splitlines()]
    problems: dict[Problem, None] = {}
    for record in records:
        problems.update({Problem(**fields): None for fields in record["problems"]})
    if problems:
        return error_from(problems)
    found = [*_disagreements(records), *_digest_disagreements(records)]
    return PreflightError(found) if found else None


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
            if mine.get(name) != theirs.get(name)
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
            for name, value in first["digests"].items()
            if record["digests"].get(name) != value
        ]
    return found


def _place(record: Record) -> str:
    return f"rank (tp {record['tp_rank']}, dp {record['dp_rank']})"
