"""Preflight: before any other collective, every rank learns whether all ranks agree.

Each rank contributes a summary, also when its own validation failed: its place, whether it found a problem, a
hash of everything that must be equal on all ranks, and one of what TP siblings must share. Summaries are
gathered over DP, that column over TP, so that every rank holds the table of the whole mesh. Where they do not
agree, whole records travel the same way, as JSON bytes, and all ranks raise the same error. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import torch
from torch import Tensor

from grpo_contract import Problem
from grpo_contract.fingerprint import canonical_json, flatten
from loss_ops.gather import Axis, Gather, Gathered, Program
from loss_ops.identity_cache import IdentityCache
from loss_ops.loss_call import LossCall
from loss_ops.preflight_table import Record, judge

PURPOSE = "preflight"
HASH_WORDS = 4
_hashes: IdentityCache[tuple[int, ...]] = IdentityCache()


def record_of(
    call: LossCall, backend: str, problems: list[Problem], grad_scale: float = 1.0, validate: str = "full"
) -> Record:
    """What a rank says of itself: place, contract, mesh, backend, options, problems, digests of shared inputs."""
    sharding = call.sharding
    return {
        "tp_rank": sharding.tp_rank,
        "dp_rank": sharding.dp_rank,
        "fields": flatten({**_mesh(call), **_options(backend, grad_scale, validate)}),
        "has_reference": call.ref_local_logits is not None,
        "problems": [problem.to_dict() for problem in problems],
        "digests": {} if problems else call.digests(),
    }


def preflight(
    call: LossCall,
    backend: str,
    problems: list[Problem],
    grad_scale: float,
    degrees: tuple[int, int],
    validate: str = "full",
) -> Program[None]:
    """Exchange summaries and raise, on every rank alike, when one holds a problem or ranks disagree.

    Raises the error of the problems found (InputError, ContractError), else PreflightError naming rank, field
    and both values. `degrees` is (tp, dp), as the groups have it.
    """
    device = call.device
    summary = _summary(call, _options(backend, grad_scale, validate), problems).to(device)
    column = yield Gather("dp", summary[None], (1,) * degrees[1], PURPOSE)
    joined = column.once("column", torch.cat)
    table = yield Gather("tp", joined[None], (1,) * degrees[0], PURPOSE)
    if not table.once("agreement", _agree):
        yield from _explain(record_of(call, backend, problems, grad_scale, validate), degrees, device)


def _mesh(call: LossCall) -> dict[str, Any]:
    return {**call.contract.numeric_content(), "sharding": call.sharding.mesh_content()}


def _options(backend: str, grad_scale: float, validate: str) -> dict[str, Any]:
    """Options that all ranks must share, equal ones in one form; what is no option still has a text."""
    scale = float(grad_scale) + 0.0  # -0.0 becomes 0.0
    return {
        "backend": backend,
        "grad_scale": scale if math.isfinite(scale) else str(scale),
        "validate": str(validate),
    }


def _summary(call: LossCall, options: dict[str, Any], problems: list[Problem]) -> Tensor:
    """[3 + 2 * HASH_WORDS] int64: tp_rank, dp_rank, found a problem, hash of fields, hash of shared inputs."""
    sharding = call.sharding
    shared = () if problems else tuple(call.digests().values())
    mesh = (call.contract, sharding.vocab_shard_bounds, sharding.sequence_shard_bounds)
    words = _hashes.get(mesh, lambda *_: _hash(canonical_json(_mesh(call))))
    fields = {**options, "mesh": words, "has_reference": call.ref_local_logits is not None}
    place = (sharding.tp_rank, sharding.dp_rank, int(bool(problems)))
    return torch.tensor([*place, *_hash(canonical_json(fields)), *_hash(repr(shared))])


def _hash(text: str) -> tuple[int, ...]:
    digest = hashlib.sha256(text.encode()).digest()
    return tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "little", signed=True) for i in range(HASH_WORDS))


def _agree(table: Gathered) -> bool:
    """Every rank in its place, without a problem, with one hash of fields, and one of inputs per DP rank."""
    whole = torch.cat(table)
    tp, dp = whole.shape[:2]
    in_place = (whole[:, :, 0] == torch.arange(tp, device=whole.device)[:, None]) & (
        whole[:, :, 1] == torch.arange(dp, device=whole.device)
    )
    fields, inputs = whole[:, :, 3:].split(HASH_WORDS, dim=2)
    alike = (fields == fields[:1, :1]).all() & (inputs == inputs[:1]).all()
    return bool(in_place.all() & (whole[:, :, 2] == 0).all() & alike)


def _explain(record: Record, degrees: tuple[int, int], device: torch.device) -> Program[None]:
    column = yield from _gather_text(json.dumps(record), "dp", degrees[1], device)
    table = yield from _gather_text("\n".join(column), "tp", degrees[0], device)
    error = judge("\n".join(table), degrees[1])
    assert error is not None, "summaries differ but records agree"
    raise type(error)(error.problems)


def _gather_text(text: str, axis: Axis, degree: int, device: torch.device) -> Program[list[str]]:
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)
    length = torch.tensor([len(data)], device=device)
    lengths = yield Gather(axis, length, (1,) * degree, PURPOSE)
    sizes = tuple(int(each) for each in lengths)
    received = yield Gather(axis, data, sizes, PURPOSE)
    return [each.cpu().numpy().tobytes().decode() for each in received]
