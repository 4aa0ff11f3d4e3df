"""A plan as data: batches, cases and the plan itself, as the launcher hands them to the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from grpo_contract import GRPOLossContract, LogitsDtype
from harness.settings.batch_spec import BatchSpec

SCHEMA_VERSION: Literal[1] = 1
Transport = Literal["gloo", "nccl", "gloo-shared-gpu", "nccl-shared-gpu", "virtual"]
Expectation = Literal["match", "caught", "refused", "any"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BatchPlan(_Part):
    """One batch of a run: a built-in one by its spec, a capture by its path; and its contract."""

    name: str
    source: Literal["builtin", "capture"]
    path: Path | None = None
    spec: BatchSpec | None = None
    contract: GRPOLossContract
    notes: tuple[str, ...] = ()


class PlannedCase(_Part):
    """One comparison to make: a candidate at a layout, on a batch (seed None: a capture has none).

    fault names the planted fault that stands in for the op; skip says why the case is not run.
    """

    index: int
    name: str
    op: str
    layout: tuple[int, int]
    batch: str
    seed: int | None
    expect: Expectation = "match"
    fault: str | None = None
    repeat: int
    skip: str | None = None

    @property
    def ranks(self) -> int:
        """How many ranks the layout has."""
        return self.layout[0] * self.layout[1]


class Asked(_Part):
    """The settings that a plan was made of: those that were given, and those of variables and pyproject.toml.

    `standing` holds the latter as they were written, also where a flag replaced them.
    """

    given: dict[str, Any] = {}
    standing: dict[str, Any] = {}


class Plan(_Part):
    """Everything the workers need to know. Cases of one (batch, seed) stand together, planted faults last."""

    schema_version: Literal[1] = SCHEMA_VERSION
    op: str
    backend: str | None
    device: Literal["cpu", "cuda"]
    dtype: LogitsDtype
    transport: Transport = "gloo"
    ranks_per_device: int = 1
    ranks: int
    timeout: float
    stress: bool = False
    batches: dict[str, BatchPlan]
    cases: tuple[PlannedCase, ...]
    notes: tuple[str, ...] = ()
    asked: Asked = Asked()

    @property
    def batch_notes(self) -> list[str]:
        """What the report says of the batches."""
        return [note for batch in self.batches.values() for note in batch.notes]

    @model_validator(mode="after")
    def _fits_together(self) -> Plan:
        if [case.index for case in self.cases] != list(range(len(self.cases))):
            raise ValueError("cases are not numbered from 0 in their order")
        if unknown := {case.batch for case in self.cases} - self.batches.keys():
            raise ValueError(f"cases name batches that the plan lacks: {sorted(unknown)}")
        if self.transport != "virtual" and any(
            case.ranks > self.ranks for case in self.cases if case.skip is None
        ):
            raise ValueError("a case needs more ranks than the plan launches")
        return self
