"""Where each rank is. Imported by ranks and launcher alike, so: pydantic and the standard library, no torch.

A rank owns two files. `rank-R.json` is replaced whenever phase or case change (about half a millisecond on
a journalling filesystem). `rank-R.step` holds only the number of collectives entered and is overwritten in
place, which takes a microsecond: `tick` may stand before every collective.
"""

from __future__ import annotations

import os
import platform
import time
import traceback
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.files.rundir import RunDir, read_text, write_atomic
from harness.system.error_text import encodable, message_of

TRACEBACK_LIMIT = 20_000
STEP_BYTES = 8


class Phase(StrEnum):
    """What a rank is doing. Within one case the order is the order of work."""

    START = "start"
    READY = "ready"
    CASE = "case"
    PREFLIGHT = "preflight"
    FORWARD = "forward"
    BACKWARD = "backward"
    COMPARE = "compare"
    DONE = "done"
    FAILED = "failed"

    @property
    def order(self) -> int:
        """The phase's place in the order of work."""
        return list(Phase).index(self)

    @property
    def is_final(self) -> bool:
        """Whether a rank says nothing more after it."""
        return self in (Phase.DONE, Phase.FAILED)


class CaseRef(BaseModel):
    """A case by its number in the plan and its name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    name: str


class RankError(BaseModel):
    """What stopped a rank, and in which phase. `code` is the error's stable code, or else its class name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    phase: Phase
    code: str
    message: str
    traceback: str


class RankStatus(BaseModel):
    """One rank's last word.

    `step` counts the collectives entered since the start and never falls; `case_step` is its value when
    `case` began, so that ranks which sat out earlier cases can still be compared. `idle` marks a rank
    that takes no part in the present case, `refusal` is why it refused that case and goes on without it.
    `time` is in seconds since the epoch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    pid: int
    host: str
    phase: Phase
    case: CaseRef | None = None
    idle: bool = False
    refusal: str | None = None
    step: int = 0
    case_step: int = 0
    time: float
    error: RankError | None = None

    @property
    def collectives(self) -> int:
        """Collectives entered in the present case."""
        return self.step - self.case_step


class StatusWriter:
    """A rank's own pen. The first thing a worker makes: it reports phase `start`."""

    def __init__(self, rundir: RunDir, rank: int) -> None:
        self._path = rundir.status(rank)
        self._steps = os.open(rundir.steps(rank), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._step = 0
        self._status = RankStatus(
            rank=rank, pid=os.getpid(), host=platform.node(), phase=Phase.START, time=time.time()
        )
        self._write()

    def update(self, *, phase: Phase | None = None, case: CaseRef | None = None, idle: bool = False) -> None:
        """Report a new phase, or a new case with it. What is None stays as it was.

        `idle` is read together with `case`: this rank takes no part in that case.
        """
        changes: dict[str, object] = {}
        if case is not None:
            changes |= {"case": case, "case_step": self._step, "idle": idle, "refusal": None, "phase": Phase.CASE}
        if phase is not None:
            changes["phase"] = phase
        self._write(**changes)

    @property
    def phase(self) -> Phase:
        """The phase last reported."""
        return self._status.phase

    def refuse(self, reason: str) -> None:
        """Report that this rank refuses the present case. Where others do not, they will wait for it."""
        self._write(refusal=encodable(reason))

    def tick(self) -> None:
        """Report that one more collective is being entered. Call it just before each one."""
        self._step += 1
        os.pwrite(self._steps, self._step.to_bytes(STEP_BYTES, "little"), 0)

    def watch(self, purpose: str) -> None:
        """Report the collective that an op of ours is entering for `purpose`, and the phase it belongs to."""
        phase = Phase.PREFLIGHT if purpose == "preflight" else Phase.FORWARD
        if self.phase is not phase:
            self.update(phase=phase)
        self.tick()

    def fail(self, exc: BaseException) -> None:
        """Report the error that ends this rank. The case stays, and the phase it failed in goes with it.

        On a full disk there is no last word: the traceback goes to stderr, and the rank's death is what is seen.
        """
        error = RankError(
            phase=self._status.phase,
            code=_code_of(exc),
            message=message_of(exc),
            traceback=encodable("".join(traceback.format_exception(exc))[-TRACEBACK_LIMIT:]),
        )
        try:
            self._write(phase=Phase.FAILED, error=error)
        except OSError:
            traceback.print_exception(exc)

    def _write(self, **changes: object) -> None:
        self._status = self._status.model_copy(update={**changes, "step": self._step, "time": time.time()})
        write_atomic(self._path, self._status.model_dump_json())


def read_status(rundir: RunDir, rank: int) -> RankStatus | None:
    """The last word of `rank`, with its present step; None while there is none that can be read."""
    text = read_text(rundir.status(rank))
    if text is None:
        return None
    try:
        status = RankStatus.model_validate_json(text)
    except ValidationError:
        return None
    return status.model_copy(update={"step": max(status.step, _read_step(rundir, rank))})


def _code_of(exc: BaseException) -> str:
    try:
        code = getattr(exc, "code", None)
    except Exception:
        code = None
    return code if isinstance(code, str) else type(exc).__name__


def _read_step(rundir: RunDir, rank: int) -> int:
    try:
        raw = rundir.steps(rank).read_bytes()
    except FileNotFoundError:
        return 0
    return int.from_bytes(raw, "little") if len(raw) == STEP_BYTES else 0
