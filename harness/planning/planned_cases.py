"""The cases of a plan: every layout on every batch and seed, then the planted faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from harness.planning.layouts import MOST_VIRTUAL, Layout, asks_for_degrees, named, short_of_devices, unfit
from harness.planning.planned import BatchPlan, PlannedCase
from harness.settings.batch_spec import CONTROL, contract_for
from harness.settings.run_config import RunConfig

FAULTED_OP = "grpo_loss"
"""The op that planted faults are faults of, whatever op the user verifies."""
CONTROL_SEED = 0
CONTROL_CONTRACT = contract_for(CONTROL, RunConfig())


class PlantedFault(Protocol):
    """What the plan needs to know of a planted fault; `layout` is the smallest that shows it."""

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def kind(self) -> str: ...

    @property
    def quantities(self) -> tuple[str, ...]: ...

    @property
    def real_ranks_from(self) -> int | None: ...


def plan_cases(
    config: RunConfig,
    batches: Mapping[str, BatchPlan],
    layouts: Sequence[Layout],
    faults: Sequence[PlantedFault],
    available_ranks: int | None,
) -> tuple[PlannedCase, ...]:
    """Every case, numbered in order: by (batch, seed), and planted faults on their own batch last."""
    drafts: list[dict[str, Any]] = []
    for batch in batches.values():
        if batch.name == CONTROL.name:
            continue
        for seed in config.seed if batch.source == "builtin" else (None,):
            drafts += _layout_cases(config, batch, seed, layouts)
            if config.controls == "batch":
                drafts += _faults_on(batch, seed, faults)
    if CONTROL.name in batches:
        reached = most_ranks(config, layouts)
        drafts += [_fault(fault) for fault in faults if fault.layout[0] * fault.layout[1] <= reached]
        if config.controls == "matrix":
            drafts += _fault_matrix(config, faults, layouts)
    return tuple(
        PlannedCase(index=index, repeat=config.repeat, **_fitted(draft, available_ranks))
        for index, draft in enumerate(drafts)
    )


def most_ranks(config: RunConfig, layouts: Sequence[Layout]) -> int:
    """The largest number of ranks that this run has; planted faults that need more are not in the plan."""
    return MOST_VIRTUAL[1] if config.virtual else max(tp * dp for tp, dp in layouts)


def _fault_matrix(
    config: RunConfig, faults: Sequence[PlantedFault], layouts: Sequence[Layout]
) -> Iterator[dict[str, Any]]:
    """Every planted fault at every larger layout of the run: where it is seen is for the record."""
    for fault in faults:
        for layout in layouts:
            if layout == fault.layout or layout[0] < fault.layout[0] or layout[1] < fault.layout[1]:
                continue
            virtual = config.virtual and fault.real_ranks_from is not None and max(layout) >= fault.real_ranks_from
            skip = "the order of a collective is its own; virtual ranks have none" if virtual else None
            yield _fault(fault) | {
                "name": f"fault/{fault.name}/{named(layout)}",
                "layout": layout,
                "expect": "any",
                "skip": unfit(layout, CONTROL_CONTRACT) or skip,
            }


def _layout_cases(
    config: RunConfig, batch: BatchPlan, seed: int | None, layouts: Sequence[Layout]
) -> Iterator[dict[str, Any]]:
    for layout in layouts:
        # Layouts nobody asked for by name are left out where a batch is too small; the others were refused.
        skip = None if asks_for_degrees(config) else unfit(layout, batch.contract)
        name = f"{_group(batch, seed)}/{named(layout)}"
        yield {
            "name": name,
            "op": config.op,
            "layout": layout,
            "batch": batch.name,
            "seed": seed,
            "skip": skip,
        }


def _fault(fault: PlantedFault) -> dict[str, Any]:
    return {
        "name": f"fault/{fault.name}/{named(fault.layout)}",
        "op": FAULTED_OP,
        "layout": fault.layout,
        "batch": CONTROL.name,
        "seed": CONTROL_SEED,
        "expect": "refused" if fault.kind == "disagreement" else "caught",
        "fault": fault.name,
    }


def _faults_on(batch: BatchPlan, seed: int | None, faults: Sequence[PlantedFault]) -> Iterator[dict[str, Any]]:
    """Planted faults on a batch of the user's: interesting, but nothing has to come of them."""
    for fault in faults:
        yield _fault(fault) | {
            "name": f"{_group(batch, seed)}/{fault.name}/{named(fault.layout)}",
            "batch": batch.name,
            "seed": seed,
            "expect": "any",
            "skip": unfit(fault.layout, batch.contract),
        }


def _group(batch: BatchPlan, seed: int | None) -> str:
    return batch.name if seed is None else f"{batch.name}/s{seed}"


def _fitted(draft: dict[str, Any], available_ranks: int | None) -> dict[str, Any]:
    return draft | {"skip": draft.get("skip") or short_of_devices(draft["layout"], available_ranks)}
