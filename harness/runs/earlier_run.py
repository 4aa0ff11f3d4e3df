"""An interrupted run as its directory holds it.

A case whose file is damaged is not finished; any other file that is damaged refuses the whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from grpo_contract import GRPOVerifyError, Problem
from harness.files.rundir import ENVIRONMENT, MARKER, RunDir, read_text
from harness.launching.status import read_status
from harness.planning.planned import Plan
from harness.provenance.identity import IDENTITY, Identity
from harness.settings.out_folder import REPORT
from harness.system.processes import command_of
from reports import CaseResult


class ResumeError(GRPOVerifyError):
    """A run that cannot be gone on with."""

    code = "resume"
    title = "cannot go on with this run"


@dataclass(frozen=True)
class Earlier:
    """An interrupted run: its directory, what it was, and its finished cases as JSON texts by number.

    `notes` names the files of cases that are damaged, and so are to be run again.
    """

    rundir: RunDir
    identity: Identity
    cases: Mapping[int, str]
    notes: tuple[str, ...] = ()

    @property
    def out(self) -> Path | None:
        """The folder of --out that it was run with; None when it had none."""
        return self.rundir.path.parent if self.rundir.path.parent.joinpath(REPORT).exists() else None


def earlier_run(folder: Path) -> Earlier:
    """The run in `folder`: a run directory, or a folder of --out, whose newest run it is.

    Raises ResumeError when there is none, when a file of it is damaged, or when its ranks are still at work.
    """
    with _readable():
        path = _newest(folder)
        text = None if path is None else read_text(path / IDENTITY)
        if path is None or text is None:
            got = "no such folder" if not folder.exists() else "nothing of that kind"
            raise ResumeError(
                Problem("resume.run", str(folder), "a run directory, or a folder given to --out", got)
            )
        identity, rundir = _identity(path / IDENTITY, text), RunDir.open(path)
        _check_idle(rundir, identity.plan.ranks)
        found = {index: _sound_case(rundir, index, identity.plan) for index in rundir.case_indices()}
        cases = {index: text for index, text in found.items() if text is not None}
        if cases:
            _check_environment_file(rundir.path / ENVIRONMENT)
    damaged = [str(rundir.case(index)) for index in found.keys() - cases.keys()]
    notes = (f"run again, because what was kept of it is damaged: {path}" for path in sorted(damaged))
    return Earlier(rundir, identity, cases, tuple(notes))


@contextmanager
def _readable() -> Iterator[None]:
    """A file or folder of the earlier run that cannot be read, as a refusal that names it."""
    try:
        yield
    except OSError as error:
        got = error.strerror or str(error)
        raise ResumeError(Problem("resume.file", str(error.filename), "something to read", got)) from None


def _identity(path: Path, text: str) -> Identity:
    try:
        return Identity.model_validate_json(text)
    except ValidationError as error:
        damaged = not isinstance(_json(text), dict)
        got = "a damaged file" if damaged else f"one of another version ({error.error_count()} fields do not fit)"
        raise ResumeError(Problem("resume.identity", str(path), "a run of this version", got)) from None


def _check_environment_file(path: Path) -> None:
    """What the ranks compare their own environment with, before anything is started for it."""
    text = read_text(path)
    if text is None or not isinstance(_json(text), dict):
        got = "no such file" if text is None else "a damaged file"
        raise ResumeError(Problem("resume.environment", str(path), "the environment of the finished cases", got))


def _check_idle(rundir: RunDir, ranks: int) -> None:
    """Refuse a run that is still at work. A pid alone says little: the process must have got this folder."""
    statuses = filter(None, (read_status(rundir, rank) for rank in range(ranks)))
    busy = [each for each in statuses if os.fsencode(rundir.path) in command_of(each.pid)]
    if busy:
        got = f"one that is still at work (rank {busy[0].rank} is process {busy[0].pid})"
        raise ResumeError(Problem("resume.busy", str(rundir.path), "a run that has ended", got))


def _sound_case(rundir: RunDir, index: int, plan: Plan) -> str | None:
    """The kept result of case `index` of `plan`; None when it is damaged, or another case's."""
    try:
        text = rundir.case(index).read_text(encoding="utf-8")
        result = CaseResult.model_validate_json(text)
    except (OSError, ValueError):
        return None
    return text if result.name in [case.name for case in plan.cases if case.index == index] else None


def _json(text: str) -> object:
    """What `text` holds; None where it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _newest(folder: Path) -> Path | None:
    if (folder / MARKER).is_file():
        return folder
    runs = [path.parent for path in folder.glob(f"*/{IDENTITY}") if (path.parent / MARKER).is_file()]
    return max(runs, key=lambda path: (path / IDENTITY).stat().st_mtime_ns, default=None)
