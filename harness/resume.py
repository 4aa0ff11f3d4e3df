"""Going on with an interrupted run: what it was, whether this would be the same run, and what it has finished.

Beside the plan a run directory holds what the results depend on: the whole plan, the code, the captures' bytes
and, once the ranks know it, their environment. Finished cases are kept only where all of it is equal; anything
else is refused with what differs, because a report must not mix results of two programs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from grpo_contract import GRPOVerifyError, Problem
from harness.devices import Machine
from harness.differences import shown
from harness.identity import IDENTITY, Identity
from harness.imported_files import IMPORTED, changed
from harness.planned import Plan
from harness.request import plan_for
from harness.run_config import RunConfig
from harness.rundir import ENVIRONMENT, EXPECTED_ENVIRONMENT, MARKER, RunDir, read_text, write_atomic

KEPT = "kept from the run that was interrupted"
REQUEST = RunConfig.model_fields.keys() - {"resume", "out", "format", "quiet", "color", "timeout", "dry_run"}
"""Settings that decide what a run is."""


class ResumeError(GRPOVerifyError):
    """A run that cannot be gone on with."""

    code = "resume"
    title = "cannot go on with this run"


@dataclass(frozen=True)
class Earlier:
    """An interrupted run: its directory, what it was, and its finished cases as JSON texts by number."""

    rundir: RunDir
    identity: Identity
    cases: Mapping[int, str]

    @property
    def out(self) -> Path | None:
        """The folder of --out that it was run with; None when it had none."""
        return self.rundir.path.parent if self.rundir.path.parent.joinpath("report.json").exists() else None


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

    Raises ResumeError when there is none, or when its identity cannot be read.
    """
    path = _newest(folder)
    text = None if path is None else read_text(path / IDENTITY)
    if path is None or text is None:
        got = "no such folder" if not folder.exists() else "nothing of that kind"
        raise ResumeError(Problem("resume.run", str(folder), "a run directory, or a folder given to --out", got))
    try:
        identity = Identity.model_validate_json(text)
    except ValidationError as error:
        got = f"one of another version ({error.error_count()} fields do not fit)"
        raise ResumeError(Problem("resume.identity", str(path), "a run of this version", got)) from None
    rundir = RunDir.open(path)
    texts = {index: read_text(rundir.case(index)) for index in rundir.case_indices()}
    return Earlier(rundir, identity, {index: text for index, text in texts.items() if text is not None})


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
            "cases": tuple(
                case.model_copy(update={"skip": KEPT}) if case.index in earlier.cases else case
                for case in plan.cases
            )
        }
    )


def _marked(text: str) -> str:
    case = json.loads(text)
    notes = [note for note in case.get("notes", ()) if note != KEPT]
    return json.dumps({**case, "notes": [*notes, KEPT]})


def _newest(folder: Path) -> Path | None:
    if (folder / MARKER).is_file():
        return folder
    runs = [path.parent for path in folder.glob(f"*/{IDENTITY}") if (path.parent / MARKER).is_file()]
    return max(runs, key=lambda path: (path / IDENTITY).stat().st_mtime_ns, default=None)
