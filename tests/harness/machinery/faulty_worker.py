"""The real worker with one fault in it, told by GRPO_TEST_FAULT; product code has no hook for any of this.

GRPO_TEST_FAULT is JSON: {"act": "kill", "phase": "forward", "case": "seed/s0/2x2", "ranks": [1]}. Acts that have
a phase happen when the rank reports that phase of that case; `start` is before the ranks join, `report` is rank 0
writing the case. The first time is written to the file `stamp`, if one is named. Disagreements and wrong results
take the place of the rank's call of the op in every case with more than one rank.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import worker

FAULT = "GRPO_TEST_FAULT"
FOREVER = 600.0


class Oddity(RuntimeError):
    """An error that is none of ours."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(FOREVER)


def hang() -> None:
    time.sleep(FOREVER)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def fail() -> None:
    raise Oddity("planted error\nwith a second line")


def memory() -> None:
    raise MemoryError("planted")


def address_space() -> None:
    """A real limit: no allocation of a few MB succeeds any more."""
    import torch

    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used, used))
    torch.ones(1 << 28)


def leave() -> None:
    os._exit(7)


def alone() -> None:
    """One of our own errors, on this rank only."""
    from grpo_contract import InputError, Problem

    raise InputError(Problem("input.planted", "rewards[0]", "a finite number", "nan"))


def disk_full() -> None:
    """No file may grow from here on; at phase `report` that is the case's result."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


ACTS: dict[str, Callable[[], None]] = {
    "kill": kill,
    "hang": hang,
    "stop": stop,
    "raise": fail,
    "memory": memory,
    "address_space": address_space,
    "leave": leave,
    "alone": alone,
    "disk_full": disk_full,
}


def plant_act(fault: dict[str, Any]) -> None:
    """Let the act happen at its phase."""
    from harness.launching.status import Phase, StatusWriter
    from harness.ranks.rank_run import RankRun

    phase = fault["phase"]

    def act() -> None:
        if "stamp" in fault and not Path(fault["stamp"]).exists():
            Path(fault["stamp"]).write_text(str(time.time()))
        ACTS[fault["act"]]()

    if phase == "start":
        _before(RankRun, "run", lambda *_: act())
        return
    if phase == "report":
        _before(RankRun, "_write", lambda _, case, *__: act() if case.name == fault["case"] else None)
        return
    update = StatusWriter.update

    def reporting(self: StatusWriter, **changes: Any) -> None:
        update(self, **changes)
        case = self._status.case
        if changes.get("phase") == Phase(phase) and case is not None and case.name == fault["case"]:
            act()

    StatusWriter.update = reporting  # type: ignore[method-assign]


def plant_call(fault: dict[str, Any]) -> None:
    """Let this rank call the op with other arguments, or return another result."""
    from harness.ranks import rank_run

    run = rank_run.run_candidate

    def odd(op: Any, batch: Any, sharding: Any, groups: Any, *rest: Any, **_told: Any) -> Any:
        if sharding.tp_degree * sharding.dp_degree == 1:
            return run(op, batch, sharding, groups, *rest)
        return CALLS[fault["act"]](run, op, batch, sharding, groups, *rest)

    rank_run.run_candidate = odd  # type: ignore[assignment]


def other_beta(run: Any, op: Any, batch: Any, sharding: Any, groups: Any, *rest: Any) -> Any:
    objective = batch.contract.objective.model_copy(update={"beta": 0.5})
    contract = batch.contract.model_copy(update={"objective": objective})
    return run(op, batch, sharding, groups, *rest[:1], contract)


def other_geometry(run: Any, op: Any, batch: Any, sharding: Any, groups: Any, *rest: Any) -> Any:
    geometry = batch.contract.geometry.model_copy(update={"group_boundaries": (0, 4, 8)})
    contract = batch.contract.model_copy(update={"geometry": geometry})
    return run(op, batch, sharding, groups, *rest[:1], contract)


def other_inputs(run: Any, op: Any, batch: Any, sharding: Any, groups: Any, *rest: Any) -> Any:
    return run(op, dataclasses.replace(batch, rewards=batch.rewards + 1), sharding, groups, *rest)


def other_version(run: Any, op: Any, batch: Any, sharding: Any, groups: Any, *rest: Any) -> Any:
    other = copy.copy(op)
    other.launch = {**op.launch, "version": "of-yesterday"}
    vars(other).pop("identity", None)  # worked out once, and held
    return run(other, batch, sharding, groups, *rest)


def wrong_shape(run: Any, op: Any, batch: Any, sharding: Any, groups: Any, *rest: Any) -> Any:
    got = run(op, batch, sharding, groups, *rest)
    return {**got, "per_sequence_policy": got["per_sequence_policy"][:-1]}


def short_message(run: Any, op: Any, batch: Any, sharding: Any, groups: Any, *rest: Any) -> Any:
    return _with_gather(run, lambda gather, request, group: gather(_shortened(request), group))(
        op, batch, sharding, groups, *rest
    )


def other_collective(run: Any, op: Any, batch: Any, sharding: Any, groups: Any, *rest: Any) -> Any:
    return _with_gather(run, _reduced_instead)(op, batch, sharding, groups, *rest)


CALLS: dict[str, Callable[..., Any]] = {
    "beta": other_beta,
    "geometry": other_geometry,
    "inputs": other_inputs,
    "version": other_version,
    "wrong_shape": wrong_shape,
    "short_message": short_message,
    "other_collective": other_collective,
}


def _with_gather(run: Any, instead: Callable[..., Any]) -> Any:
    """`run` with another way to answer a gather that comes after the preflight."""
    from loss_ops import real_ranks

    gather = real_ranks._all_gather

    def odd(request: Any, group: Any) -> Any:
        return gather(request, group) if request.purpose == "preflight" else instead(gather, request, group)

    real_ranks._all_gather = odd
    return run


def _shortened(request: Any) -> Any:
    sizes = tuple(max(1, size // 2) for size in request.sizes)
    return dataclasses.replace(request, tensor=request.tensor[: min(sizes)], sizes=sizes)


def _reduced_instead(gather: Any, request: Any, group: Any) -> Any:
    import torch.distributed as dist

    dist.all_reduce(request.tensor.clone(), group=group)
    return gather(request, group)


def _before(owner: type, name: str, act: Callable[..., None]) -> None:
    original = getattr(owner, name)

    def wrapped(*args: Any) -> Any:
        act(*args)
        return original(*args)

    setattr(owner, name, wrapped)


def main() -> int:
    fault = json.loads(os.environ.get(FAULT, "{}"))
    if int(os.environ["RANK"]) in fault.get("ranks", ()):
        (plant_act if fault["act"] in ACTS else plant_call)(fault)
    return worker.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
