"""What the results of a run depend on, as data that is kept beside them. Never imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from grpo_contract import Problem
from harness.files.rundir import RunDir, write_atomic
from harness.planning.planned import Plan
from harness.provenance.code_version import code_digest, digest_of, op_digest
from harness.provenance.differences import differences

IDENTITY = "identity.json"


class Identity(BaseModel):
    """What the results of a run depend on, beside the environment of its ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Plan
    code: str
    op_code: str | None
    captures: dict[str, str]

    @classmethod
    def of(cls, plan: Plan) -> Identity:
        """The identity of a run of `plan` by this code."""
        paths = {name: batch.path for name, batch in plan.batches.items() if batch.path is not None}
        captures = {name: _digest_or_why(path) for name, path in paths.items()}
        return cls(plan=plan, code=code_digest(), op_code=op_digest(plan.op), captures=captures)

    def differences(self, other: Identity) -> list[Problem]:
        """What `other` has that this one has not; `--timeout` decides nothing and may differ."""
        return list(differences("resume.differs", _content(self), _content(other)))


def write_identity(rundir: RunDir, plan: Plan) -> None:
    """Leave in `rundir` what a later run needs to go on with it."""
    write_atomic(rundir.path / IDENTITY, Identity.of(plan).model_dump_json())


def _content(identity: Identity) -> dict[str, Any]:
    """The identity with its cases by name, and without --timeout and remarks, which decide no result."""
    content = identity.model_dump(mode="json")
    plan = content["plan"]
    del plan["timeout"], plan["notes"]
    plan["cases"] = {case.pop("name"): _as_text(case) for case in plan["cases"]}
    return content


def _as_text(case: dict[str, Any]) -> str:
    """A case as one value: a case more or less is one difference, not one for each of its fields."""
    return ", ".join(f"{name} {value}" for name, value in case.items() if value is not None)


def _digest_or_why(path: Path) -> str:
    try:
        return digest_of([path])
    except OSError as error:
        return f"unreadable: {error.strerror}"
