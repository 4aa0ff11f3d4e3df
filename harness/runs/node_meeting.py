"""The meeting of all ranks before any work: who is there, what each of them is about to run, and who refuses."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from grpo_contract import GRPOVerifyError, PreflightError, Problem
from harness.files.rundir import RunDirError
from harness.launching.blame_words import named
from harness.runs.node_identity import brief

# How long ranks wait for the status of rank 0 once all of them are done.
EXIT_SECONDS = 30.0
STALE = "run_dir.stale"
"""The code of a refusal because a folder is another run's."""


class Presence(BaseModel):
    """A rank as it tells the others of itself. `folder` is where its status lies, on its own machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    pid: int
    host: str
    folder: str
    identity: dict[str, str]
    refusals: tuple[Problem, ...] = ()

    @classmethod
    def own(cls, rank: int, folder: Path, identity: dict[str, str], refusals: Sequence[Problem]) -> Presence:
        """This process as rank `rank`."""
        at: dict[str, Any] = {"pid": os.getpid(), "host": platform.node(), "folder": str(folder)}
        return cls(rank=rank, identity=identity, refusals=tuple(refusals), **at)

    @property
    def stale(self) -> list[Problem]:
        """Why its folder is another run's, which a refusal must leave as it is."""
        return [problem for problem in self.refusals if problem.code == STALE]

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine."""
        return self.host == platform.node()


class StaleFolderError(RunDirError):
    """A folder that another run has begun to fill."""


def meet(own: Presence, timeout: float) -> dict[int, Presence]:
    """All ranks, once all have come and are about to run the same; raises on every rank alike where they are not.

    A rank that refuses comes too. Where the others do not, its refusal stands.
    """
    try:
        texts = _gathered("meeting", own.model_dump_json(), timeout)
    except Exception:
        check_agreement({own.rank: own})
        raise
    present = {rank: Presence.model_validate_json(text) for rank, text in enumerate(texts)}
    check_agreement(present)
    return present


def check_agreement(present: Mapping[int, Presence]) -> None:
    """Raise GRPOVerifyError for what ranks refuse, or PreflightError for what they do not agree on."""
    if stale := [problem for each in present.values() for problem in each.stale]:
        raise StaleFolderError(stale)
    if refusals := list(_refusals(present)):
        raise GRPOVerifyError(refusals)
    if differing := list(_disagreements(present)):
        raise PreflightError(differing)


def agreed_exit(status: int | None) -> int:
    """Rank 0's `status` on every rank, so that every node leaves alike; 1 where rank 0 says nothing in time."""
    try:
        told = _gathered("exit", "" if status is None else str(status), EXIT_SECONDS)[0]
    except Exception:
        return 1 if status is None else status
    return int(told)


def _refusals(present: Mapping[int, Presence]) -> Iterator[Problem]:
    """Each refusal once, with its ranks unless all share it."""
    ranks: dict[Problem, list[int]] = {}
    for rank, each in present.items():
        for problem in each.refusals:
            ranks.setdefault(problem, []).append(rank)
    for problem, who in ranks.items():
        where = problem.where if len(who) == len(present) else f"{problem.where} of {named(who)}"
        yield Problem(problem.code, where, problem.expected, problem.got)


def _disagreements(present: Mapping[int, Presence]) -> Iterator[Problem]:
    """Each field in which ranks differ from rank 0, at the first rank that does."""
    first = present[min(present)].identity
    for name in dict.fromkeys(name for each in present.values() for name in each.identity):
        mine = first.get(name, "nothing")
        found = ((rank, each.identity.get(name, "nothing")) for rank, each in present.items())
        rank, other = next(((rank, value) for rank, value in found if value != mine), (0, mine))
        if other != mine:
            yield Problem(
                "preflight.identity", f"{name} of rank {rank}", f"{brief(mine)}, as rank 0", brief(other)
            )


def _gathered(purpose: str, text: str, seconds: float) -> list[str]:
    """Every rank's text through a process group of its own, which is gone afterwards."""
    import torch.distributed as dist

    from harness.ranks.exchange import gather_texts

    timeout = timedelta(seconds=seconds)
    store, rank, world = _store()
    store.set_timeout(timeout)
    prefixed = dist.PrefixStore(f"grpo-verify/{purpose}", store)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=world, timeout=timeout)
    try:
        return gather_texts(text)
    finally:
        dist.destroy_process_group()


@cache
def _store() -> tuple[Any, int, int]:
    """torchrun's store. Kept to the end: where no agent holds it rank 0 does, as long as it is referred to."""
    import torch.distributed as dist

    store, rank, world = next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined]
    return store, rank, world
