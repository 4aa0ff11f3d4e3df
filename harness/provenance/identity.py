"""What the results of a run depend on, as data that is kept beside them. Never imports torch."""

from __future__ import annotations

import os
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
        found = differences("resume.differs", _content(self), _content(other))
        is_lost = self.op_code is not None and other.op_code is None and self.plan.op == other.plan.op
        return [self._lost_op() if is_lost and each.where == "op_code" else each for each in found]

    def _lost_op(self) -> Problem:
        got = f"nothing: the op was not found from here ({os.getcwd()})"
        return Problem("resume.differs", "op_code", f"{self.plan.op}, as in the interrupted run", got)


def write_identity(rundir: RunDir, plan: Plan) -> None:
    """Leave in `rundir` what a later run needs to go on with it."""
    write_atomic(rundir.path / IDENTITY, Identity.of(plan).model_dump_json())


def _content(identity: Identity) -> dict[str, Any]:
    """The identity with its cases by name, and without --timeout, remarks and the settings behind the plan."""
    content = identity.model_dump(mode="json")
    plan = content["plan"]
    del plan["timeout"], plan["notes"], plan["asked"]
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
