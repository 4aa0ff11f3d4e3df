"""What the launcher can see of a running launch: statuses, deaths, finished cases. It sees; others decide."""

from __future__ import annotations

import time
from collections.abc import Callable
from subprocess import Popen

from harness.files.rundir import read_text
from harness.launching.blame import Death, is_effect
from harness.launching.launch_log import closed_pids, first_failure
from harness.launching.launch_request import LaunchRequest
from harness.launching.status import Phase, RankStatus, read_status
from harness.system.processes import is_alive, read_process

OnCase = Callable[[int, str], None]


class Watch:
    """Keeps the ranks' last words up to date and hands on what is new, each time `look` is called."""

    def __init__(self, request: LaunchRequest, process: Popen[bytes], on_case: OnCase) -> None:
        self.request = request
        self.process = process
        self.started = self.changed = time.monotonic()
        self.statuses: dict[int, RankStatus] = {}
        self.first_death: float | None = None
        self.first_failure: float | None = None
        self._deaths: dict[int, int | None] = {}
        self._ended_well: set[int] = set()
        self._delivered: set[int] = set()
        self._on_case = on_case

    def look(self) -> None:
        """One look at everything: words first, then deaths, so that a death which made another rank fail is
        seen no later than that failure. Deaths after a failure are its consequences and are not noted, unless
        nothing but lost connections failed: a dying process closes them before it can be seen to be dead."""
        before = dict(self.statuses)
        self._read(range(self.request.ranks))
        if self.first_failure is None or self.only_effects:
            self._note_deaths()
        if self.statuses != before:
            self.changed = time.monotonic()
        if self.first_failure is None and any(s.phase is Phase.FAILED for s in self.statuses.values()):
            self.first_failure = time.monotonic()
        self.deliver()

    def deliver(self) -> None:
        """Hand on the cases finished since the last time, in their order."""
        rundir = self.request.rundir
        for index in rundir.case_indices():
            if index not in self._delivered and (text := read_text(rundir.case(index))) is not None:
                self._delivered.add(index)
                self._on_case(index, text)

    def deaths(self) -> list[Death]:
        """The untimely deaths in the order seen, completed by torchrun's own account where there is one."""
        found = dict(self._deaths)
        if found or self.process.poll() is not None:
            told = first_failure(self.request.rundir)
            if told is not None and self._is_untimely(*told):
                rank, code = told
                found = {rank: code, **{other: found[other] for other in found if other != rank}}
        closed = closed_pids(self.request.rundir) if found else set()
        return [Death(rank, code, self._pid(rank) in closed) for rank, code in found.items()]

    @property
    def only_effects(self) -> bool:
        """Whether every error so far is the effect of a rank that is gone."""
        return all(is_effect(status) for status in self.statuses.values() if status.error is not None)

    @property
    def all_ready(self) -> bool:
        """Whether every rank has passed its start."""
        return self._all(lambda status: status.phase is not Phase.START)

    @property
    def all_done(self) -> bool:
        """Whether every rank says it is done."""
        return self._all(lambda status: status.phase is Phase.DONE)

    @property
    def all_ended_well(self) -> bool:
        """Whether every rank is done and was then seen to have ended with status 0, which torchrun can hide."""
        return self.all_done and len(self._ended_well) == self.request.ranks

    @property
    def all_ended(self) -> bool:
        """Whether no rank has anything more to say."""
        return self._all(lambda status: status.phase.is_final or not is_alive(status.pid))

    def living_pids(self) -> dict[int, int]:
        """The pids, by rank, of the ranks that still run."""
        return {rank: status.pid for rank, status in self.statuses.items() if is_alive(status.pid)}

    def stopped(self) -> dict[int, str]:
        """The ranks that are stopped, and by what."""
        processes = {rank: read_process(status.pid) for rank, status in self.statuses.items()}
        return {rank: each.stopped for rank, each in processes.items() if each is not None and each.stopped}

    def _all(self, test: Callable[[RankStatus], bool]) -> bool:
        return len(self.statuses) == self.request.ranks and all(map(test, self.statuses.values()))

    def _read(self, ranks: range | list[int]) -> None:
        for rank in ranks:
            status = read_status(self.request.rundir, rank)
            if status is not None:
                self.statuses[rank] = status

    def _note_deaths(self) -> None:
        unknown = [rank for rank in self.statuses if self._deaths.get(rank) is None]
        gone = [rank for rank in unknown if not is_alive(self.statuses[rank].pid)]
        self._read(gone)  # its last word may be newer than the one read before
        for rank in gone:
            process = read_process(self.statuses[rank].pid)
            code = None if process is None else process.exit
            if process is not None and not code and self.statuses[rank].phase is Phase.DONE:
                self._ended_well.add(rank)
            if rank in self._deaths or self._is_untimely(rank, code):
                self._deaths[rank] = code
                self.first_death = self.first_death or time.monotonic()

    def _is_untimely(self, rank: int, code: int | None) -> bool:
        """A failed rank has said why; a done one may end, but only well."""
        status = self.statuses.get(rank)
        if status is None or not status.phase.is_final:
            return True
        return status.phase is Phase.DONE and bool(code)

    def _pid(self, rank: int) -> int | None:
        status = self.statuses.get(rank)
        return None if status is None else status.pid
