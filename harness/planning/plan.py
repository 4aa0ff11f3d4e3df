"""The plan of a run: which cases, on which batches, and which are skipped and why. Pure rules, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from grpo_contract import GRPOVerifyError, InputError, Problem, error_from
from harness.inputs.capture_header import CaptureHeader
from harness.planning.layouts import (
    BASELINE,
    Layout,
    asks_for_degrees,
    degree_problems,
    layouts_of,
    named,
    rank_problems,
)
from harness.planning.planned import Asked, BatchPlan, Plan, Transport
from harness.planning.planned_batches import control_batch, plan_batches
from harness.planning.planned_cases import PlantedFault, most_ranks, plan_cases
from harness.planning.stress_notes import disturbs
from harness.planning.unused_flags import contradictions, unused_notes
from harness.settings.batch_spec import CONTROL
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig


def make_plan(
    config: RunConfig,
    *,
    device: Literal["cpu", "cuda"],
    available_ranks: int | None,
    faults: Sequence[PlantedFault],
    captures: Mapping[str, CaptureHeader | InputError] | None = None,
    cores: int | None = None,
    transport: Transport = "gloo",
    ranks_per_device: int = 1,
) -> Plan:
    """Plan a run of `config` on a device that holds `available_ranks` ranks (None: no limit, as on the CPU).

    `captures` holds the header of every capture file that config.batch names, or why it has none. Raises one
    error with everything that stands against the request: unknown batches, unreadable files, contracts that
    cannot hold, degrees that a batch cannot fill.
    """
    faults = [fault for fault in faults if fault.kind != "timing" or disturbs(config)]
    layouts = layouts_of(config, available_ranks)
    batches = _batches(config, captures or {}, layouts, device)
    if config.controls != "off" and faults:
        batches[CONTROL.name] = control_batch()
    cases = plan_cases(config, batches, layouts, faults, available_ranks)
    ranks = 1 if config.virtual else max([case.ranks for case in cases if case.skip is None], default=1)
    return Plan(
        op=config.op,
        backend=config.backend,
        device=device,
        dtype=config.dtype,
        transport=transport,
        ranks_per_device=ranks_per_device,
        ranks=ranks,
        timeout=config.timeout,
        stress=config.stress,
        batches=batches,
        cases=cases,
        notes=(
            *_notes(ranks, layouts, device, cores),
            *_stress_notes(config),
            *_unseen_orders(config, layouts),
            *_absent_faults(config, faults, layouts),
            *unused_notes(config, batches.values(), device, transport),
        ),
        asked=Asked(given=config.given_values(), standing=config.standing),
    )


def _batches(
    config: RunConfig,
    captures: Mapping[str, CaptureHeader | InputError],
    layouts: tuple[Layout, ...],
    device: Literal["cpu", "cuda"],
) -> dict[str, BatchPlan]:
    """The batches of the run, by name. Raises one error with everything that stands against the request."""
    batches, problems = plan_batches(config, captures, layouts)
    problems = [*contradictions(config, device), *rank_problems(config, layouts, device), *problems]
    if asks_for_degrees(config):
        for batch in batches.values():
            problems += degree_problems(config, layouts, batch.name, batch.contract)
    if problems:
        raise _error(problems)
    return batches


def _unseen_orders(config: RunConfig, layouts: Sequence[Layout]) -> tuple[str, ...]:
    """What two ranks on an axis cannot show of an op that brings its own collectives, and what would."""
    if ":" not in config.op:
        return ()
    largest = {"tp": max(tp for tp, _ in layouts), "dp": max(dp for _, dp in layouts)}
    return tuple(
        f"two {axis.upper()} ranks have one order of addition: whether a collective of {config.op} adds in "
        f"another order shows from three ranks on (such as --{axis} 4)"
        for axis, degree in largest.items()
        if degree == 2
    )


def _absent_faults(
    config: RunConfig, faults: Sequence[PlantedFault], layouts: Sequence[Layout]
) -> tuple[str, ...]:
    if config.controls == "off":
        return ()
    reached = most_ranks(config, layouts)
    absent = [fault for fault in faults if fault.layout[0] * fault.layout[1] > reached]
    return tuple(
        f"planted fault {fault.name} needs layout {named(fault.layout)}; this run has {reached} ranks"
        for fault in absent
    )


def _notes(ranks: int, layouts: Sequence[Layout], device: str, cores: int | None) -> tuple[str, ...]:
    notes = []
    if device == "cpu" and cores is not None and ranks > cores:
        notes.append(f"{ranks} ranks share {cores} CPU cores: expect a slow run")
    if all(layout == BASELINE for layout in layouts):
        notes.append("1x1 is the only layout: it shows that runs repeat, nothing about layouts")
    return tuple(notes)


def _stress_notes(config: RunConfig) -> tuple[str, ...]:
    """Why --stress shows nothing in this run, if it does not."""
    if config.stress and config.virtual:
        return ("--stress changes nothing for virtual ranks: one process takes all their steps in turn",)
    if config.stress and config.repeat == 1:
        return ("--stress disturbs repeats, and there is none: --repeat is 1",)
    return ()


def _error(problems: Sequence[Problem]) -> GRPOVerifyError:
    """Problems of the request itself make a RequestError; what a contract or a file says keeps its class."""
    if any(problem.code.startswith("request") for problem in problems):
        return RequestError(problems)
    return error_from(problems)
