"""Going on with an interrupted run: whether this would be the same run, and what is left of it to do.

Beside the plan a run directory holds what the results depend on: the whole plan, the code, the captures' bytes
and, once the ranks know it, their environment. Finished cases are kept only where all of it is equal; anything
else is refused with what differs, because a report must not mix results of two programs.
"""

from __future__ import annotations

import json
from pathlib import Path

from harness.files.rundir import ENVIRONMENT, EXPECTED_ENVIRONMENT, RunDir, read_text, write_atomic
from harness.planning.planned import Asked, Plan
from harness.provenance.differences import shown
from harness.provenance.identity import Identity
from harness.provenance.imported_files import IMPORTED, changed
from harness.runs.earlier_run import Earlier, ResumeError, earlier_run
from harness.runs.request import plan_for
from harness.settings.config_sources import merge
from harness.settings.devices import Machine
from harness.settings.run_config import RunConfig
from harness.settings.setting_names import flag_name
from harness.settings.source import Source

KEPT = "kept from the run that was interrupted"
REQUEST = RunConfig.model_fields.keys() - {"resume", "out", "format", "quiet", "color", "timeout", "dry_run"}
"""Settings that decide what a run is."""


def request_for(config: RunConfig, machine: Machine | None = None) -> tuple[Plan, Earlier | None, Path | None]:
    """The plan of `config`, the run it goes on with, if it does, and the folder for the report.

    With --resume alone the plan is the interrupted run's own; with flags that say what to run it is made of
    them, and must be the same, as with variables and keys of pyproject.toml that say something else than they
    did then. Raises ResumeError when it is not.
    """
    if config.resume is None:
        return plan_for(config, machine), None, config.out
    earlier = earlier_run(config.resume)
    asked = asked_anew(config, earlier.identity.plan.asked)
    plan = earlier.identity.plan if asked is None else plan_for(asked, machine)
    if config.is_given("timeout"):
        plan = plan.model_copy(update={"timeout": config.timeout})
    check_same(earlier, plan)
    return plan, earlier, config.out or earlier.out


def check_same(earlier: Earlier, plan: Plan) -> None:
    """Raise ResumeError naming everything in which a run of `plan` by this code would be another run."""
    problems = [
        *earlier.identity.differences(Identity.of(plan)),
        *(changed(earlier.rundir) if earlier.cases else ()),
    ]
    if problems:
        raise ResumeError(shown(problems))


def asked_anew(config: RunConfig, then: Asked) -> RunConfig | None:
    """What to run as it is told beside where to go on, which must be the same request; None where nothing is.

    Settings that flags do not replace, and that stood otherwise when the run began, are put in place of its own.
    """
    if any(config.where(name).startswith("--") for name in REQUEST if config.is_given(name)):
        return config
    now = config.standing
    moved = {name: now[name] for name in now if name in REQUEST and now[name] != then.standing.get(name)}
    if not moved:
        return None
    first = {name: value for name, value in then.given.items() if name in REQUEST}
    earlier = Source(first, {name: flag_name(name) for name in first})
    values, places = merge([earlier, Source(moved, {name: config.where(name) for name in moved})])
    return RunConfig(origins=places, standing=now, **values)


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


def _marked(text: str) -> str:
    case = json.loads(text)
    notes = [note for note in case.get("notes", ()) if note != KEPT]
    return json.dumps({**case, "notes": [*notes, KEPT]})
