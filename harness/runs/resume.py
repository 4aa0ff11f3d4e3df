"""Going on with an interrupted run: what it was, whether this would be the same run, and what it has finished.

Beside the plan a run directory holds what the results depend on: the whole plan, the code, the captures' bytes
and, once the ranks know it, their environment. Finished cases are kept only where all of it is equal; anything
else is refused with what differs, because a report must not mix results of two programs. A case whose file is
damaged is not finished; any other file that is damaged refuses the whole.
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
from harness.files.rundir import ENVIRONMENT, EXPECTED_ENVIRONMENT, MARKER, RunDir, read_text, write_atomic
from harness.launching.status import read_status
from harness.planning.planned import Plan
from harness.provenance.differences import shown
from harness.provenance.identity import IDENTITY, Identity
from harness.provenance.imported_files import IMPORTED, changed
from harness.runs.request import plan_for
from harness.settings.devices import Machine
from harness.settings.out_folder import REPORT
from harness.settings.run_config import RunConfig
from harness.system.processes import command_of
from reports import CaseResult

KEPT = "kept from the run that was interrupted"
REQUEST = RunConfig.model_fields.keys() - {"resume", "out", "format", "quiet", "color", "timeout", "dry_run"}
"""Settings that decide what a run is."""


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


def request_for(config: RunConfig, machine: Machine | None = None) -> tuple[Plan, Earlier | None, Path | None]:
    """The plan of `config`, the run it goes on with, if it does, and the folder for the report.

    With --resume alone the plan is the interrupted run's own; with flags that say what to run it is made of
    them, and must be the same. Raises ResumeError when it is not.
    """
    if config.resume is None:
        return plan_for(config, machine), None, config.out
    earlier = earlier_run(config.resume)
    plan = plan_for(config, machine) if is_asked_anew(config) else earlier.identity.plan
    if config.is_given("timeout"):
        plan = plan.model_copy(update={"timeout": config.timeout})
    check_same(earlier, plan)
    return plan, earlier, config.out or earlier.out


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


def check_same(earlier: Earlier, plan: Plan) -> None:
    """Raise ResumeError naming everything in which a run of `plan` by this code would be another run."""
    problems = [
        *earlier.identity.differences(Identity.of(plan)),
        *(changed(earlier.rundir) if earlier.cases else ()),
    ]
    if problems:
        raise ResumeError(shown(problems))


def is_asked_anew(config: RunConfig) -> bool:
    """Whether the command line says what to run, beside where to go on; then it must be the same request."""
    return any(config.where(name).startswith("--") for name in REQUEST if config.is_given(name))


def prepare(rundir: RunDir, earlier: Earlier, plan: Plan) -> Plan:
    """Carry the finished cases over into `rundir`, and return `plan` with only what is left to do.

    Finished cases stay in that plan as skipped, so that all ranks leave them out alike. The ranks compare
    their environment with the earlier one before they join.
    """
    for index, text in earlier.cases.items():
        rundir.write_case(index, _marked(text))
    if (imported := read_text(earlier.rundir.path / IMPORTED)) is not None:
        write_atomic(rundir.path / IMPORTED, imported)
    environment = read_text(earlier.rundir.path / ENVIRONMENT)
    if environment is not None and earlier.cases:
        write_atomic(rundir.path / EXPECTED_ENVIRONMENT, environment)
    return plan.model_copy(
        update={
            "notes": (*plan.notes, *earlier.notes),
            "cases": tuple(
                case.model_copy(update={"skip": KEPT}) if case.index in earlier.cases else case
                for case in plan.cases
            ),
        }
    )


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


def _marked(text: str) -> str:
    case = json.loads(text)
    notes = [note for note in case.get("notes", ()) if note != KEPT]
    return json.dumps({**case, "notes": [*notes, KEPT]})


def _newest(folder: Path) -> Path | None:
    if (folder / MARKER).is_file():
        return folder
    runs = [path.parent for path in folder.glob(f"*/{IDENTITY}") if (path.parent / MARKER).is_file()]
    return max(runs, key=lambda path: (path / IDENTITY).stat().st_mtime_ns, default=None)
