"""The batches of a plan: names resolved, each with the contract it is run under."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_contract import ContractError, InputError, Problem
from harness.inputs.capture_contract import capture_contract
from harness.inputs.capture_header import CaptureHeader
from harness.inputs.enlarge import enlarged
from harness.planning.layouts import Layout
from harness.planning.planned import BatchPlan
from harness.planning.sweep import swept
from harness.settings.batch_spec import BUILT_IN, CONTROL, FAMILIES, SWEPT, BatchSpec, contract_for, expand
from harness.settings.config_problems import relocated, suggestion
from harness.settings.run_config import RunConfig

SUFFIX = ".safetensors"


def is_capture(name: str) -> bool:
    """Whether a batch is named by a path."""
    return name.endswith(SUFFIX) or os.sep in name


def plan_batches(
    config: RunConfig, captures: Mapping[str, CaptureHeader | InputError], layouts: Sequence[Layout]
) -> tuple[dict[str, BatchPlan], list[Problem]]:
    """The batches of `config` by name, in order, and all that is wrong with them."""
    batches: dict[str, BatchPlan] = {}
    problems: list[Problem] = []
    for asked in _asked(config):
        names = (asked,) if is_capture(asked) else expand(asked)
        if not names:
            problems.append(_unknown(asked, config))
        for name in names:
            try:
                planned = _plan_batch(name, config, captures, batches, layouts)
            except (ContractError, InputError) as error:
                problems += [_placed(problem, name, config) for problem in error.problems]
            else:
                batches |= {batch.name: batch for batch in planned}
    return batches, problems


def _asked(config: RunConfig) -> tuple[str, ...]:
    """The batches by name; a sweep for which none was named moves the small one."""
    return (SWEPT,) if config.sweep and not config.is_given("batch") else config.batch


def control_batch() -> BatchPlan:
    """The planted faults' own batch: its contract takes nothing from the user, so that no flag disarms them."""
    return BatchPlan(
        name=CONTROL.name, source="builtin", spec=CONTROL, contract=contract_for(CONTROL, RunConfig())
    )


def _plan_batch(
    name: str,
    config: RunConfig,
    captures: Mapping[str, CaptureHeader | InputError],
    taken: Mapping[str, BatchPlan],
    layouts: Sequence[Layout],
) -> tuple[BatchPlan, ...]:
    if not is_capture(name):
        return tuple(_built_in(spec, config, layouts) for spec in swept(BUILT_IN[name], config.sweep))
    header = captures[name]
    if isinstance(header, InputError):
        raise header
    contract, notes = capture_contract(header, config)
    if config.is_given("dtype") and config.dtype != contract.logprob.dtype:
        notes = (
            *notes,
            f"logits are {contract.logprob.dtype} as stored; {config.where('dtype')} is not for captures",
        )
    short = Path(name).stem
    is_free = short not in BUILT_IN and short not in taken and short != CONTROL.name
    shown = short if is_free else name
    path = header.path.resolve()
    return (BatchPlan(name=shown, source="capture", path=path, contract=contract, notes=notes),)


def _built_in(spec: BatchSpec, config: RunConfig, layouts: Sequence[Layout]) -> BatchPlan:
    note = None
    if config.virtual:
        spec, note = enlarged(spec, max(tp for tp, _ in layouts), max(dp for _, dp in layouts))
    contract = contract_for(spec, config)
    return BatchPlan(name=spec.name, source="builtin", spec=spec, contract=contract, notes=(note,) if note else ())


def _unknown(name: str, config: RunConfig) -> Problem:
    known = [*BUILT_IN, *FAMILIES]
    expected = f"one of {', '.join(sorted(known))}, or a file ending in {SUFFIX}{suggestion(name, known)}"
    return Problem("request.batch", config.where("batch"), expected, name)


def _placed(problem: Problem, batch: str, config: RunConfig) -> Problem:
    def where(setting: str) -> str:
        return config.where(setting) if config.is_given(setting) else problem.where

    if problem.code.startswith("input"):  # it names the file
        return problem
    place = relocated(problem, where).where
    return Problem(problem.code, f"batch {batch}: {place}", problem.expected, problem.got)
