"""What a snapshot holds, computed here and now: an op at 1x1 on every requested batch, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.comparing.digests import digest_of
from harness.comparing.entry import Entry, SnapshotKey
from harness.own_ops.ops import launch_of, resolve
from harness.planning.planned import Plan
from harness.ranks.batch_store import build_batch, run_alone
from harness.ranks.environment import environment

TRANSPORT = "one process"


@dataclass(frozen=True)
class Obtained:
    """An entry and the tensors behind it, on the CPU."""

    entry: Entry
    tensors: dict[str, Tensor]


def obtain(plan: Plan) -> Iterator[Obtained]:
    """One entry for every batch and seed of the plan that is not a planted fault's own."""
    torch.set_num_threads(1)
    device = torch.device(plan.device)
    wanted = dict.fromkeys((case.batch, case.seed) for case in plan.cases if case.fault is None)
    for name, seed in wanted:
        yield _obtained(plan, name, seed, device)


def _obtained(plan: Plan, name: str, seed: int | None, device: torch.device) -> Obtained:
    planned = plan.batches[name]
    batch = build_batch(planned, seed).to(device)
    op = resolve(plan.op, plan.backend, batch.contract, plan.device)
    found = {name: value.cpu() for name, value in run_alone(op, batch).items()}
    entry = Entry(
        name="/".join([plan.op, name, *([] if seed is None else [f"s{seed}"])]),
        batch=name,
        seed=seed,
        key=_key(plan, batch.contract.numeric_fingerprint(launch_of(op)), device),
        contract=batch.contract.model_dump(mode="json"),
        quantities={name: digest_of(name, value) for name, value in found.items()},
    )
    return Obtained(entry, found)


def _key(plan: Plan, numeric_fingerprint: str, device: torch.device) -> SnapshotKey:
    here = environment(device)
    op = plan.op if plan.backend is None else f"{plan.op} ({plan.backend})"
    return SnapshotKey(
        op=op,
        numeric_fingerprint=numeric_fingerprint,
        torch=here["torch"],
        cuda=here["cuda"],
        triton=here["triton"],
        device=here["device_name"],
        transport=TRANSPORT,
    )
