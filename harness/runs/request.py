"""From a configuration to a plan: looks at the machine, the capture files and the catalogue of faults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grpo_contract import GRPOVerifyError, InputError, Problem
from harness.inputs.capture_header import CaptureHeader, read_header
from harness.launching.shared_nccl import SHARED_NCCL, probed_version, version_problem
from harness.own_ops.op_names import check_backend, check_op
from harness.own_ops.op_place import hidden_notes
from harness.planning.plan import make_plan
from harness.planning.planned import Plan
from harness.planning.planned_batches import is_capture
from harness.planning.planned_cases import PlantedFault
from harness.planning.seating import seat
from harness.settings.devices import Machine, this_machine
from harness.settings.out_folder import check_out
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig


def plan_for(config: RunConfig, machine: Machine | None = None) -> Plan:
    """The plan of `config` on this machine, its captures read and found sound. Never imports torch.

    Raises a GRPOVerifyError with every problem of the first kind found: the device, then the request and the
    headers of its files, then the values inside these.
    """
    check_op(config, is_here=machine is None or machine.is_here)
    check_out(config.out, config.where("out"))
    found = machine or this_machine()
    seating = seat(config, found)
    if seating.transport == SHARED_NCCL and found.is_here:
        _check_nccl(config)
    plan = make_plan(
        config,
        device=seating.device,
        available_ranks=seating.available_ranks,
        faults=planted_faults(),
        captures=read_captures(config),
        cores=found.cores,
        transport=seating.transport,
        ranks_per_device=seating.ranks_per_device,
    )
    if found.is_here:
        check_backend(config, seating.device)
    check_values(plan)
    beside = hidden_notes(config.op) if found.is_here else ()
    return plan.model_copy(update={"notes": (*plan.notes, *beside)})


def _check_nccl(config: RunConfig) -> None:
    """Raise RequestError when the NCCL of this machine's torch lets no ranks share a GPU."""
    if problem := version_problem(probed_version(), config.where("shared_transport")):
        raise RequestError(problem)


def planted_faults() -> Sequence[PlantedFault]:
    """The catalogue of planted faults."""
    from loss_ops.faults import FAULTS

    return FAULTS


def read_captures(config: RunConfig) -> dict[str, CaptureHeader | InputError]:
    """The header of every capture that `config` names, or why it cannot be read."""
    return {name: _header_or_error(Path(name).expanduser()) for name in config.batch if is_capture(name)}


def _header_or_error(path: Path) -> CaptureHeader | InputError:
    try:
        return read_header(path)
    except InputError as error:
        return error


def check_values(plan: Plan) -> None:
    """Look at the values of every capture of `plan`. Raises one InputError for all of them."""
    problems: list[Problem] = []
    for batch in plan.batches.values():
        if batch.path is not None:
            from harness.inputs.capture_check import check_capture  # brings numpy: a tenth of the parent's start

            try:
                check_capture(batch.path, batch.contract)
            except GRPOVerifyError as error:
                problems += error.problems
    if problems:
        raise InputError(problems)
