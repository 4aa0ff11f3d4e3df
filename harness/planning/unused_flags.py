"""Settings that cannot both hold, and settings that change nothing in this run.

No flag that says what to run is silently ignored; those of the presentation say nothing where they have no use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from grpo_contract import Problem
from harness.planning.planned import BatchPlan, Transport
from harness.planning.planned_cases import FAULTED_OP
from harness.settings.batch_spec import CONTROL
from harness.settings.run_config import RunConfig


def contradictions(config: RunConfig, device: str) -> list[Problem]:
    """Settings of which one would have to be ignored."""
    return [*_two_backends(config), *_shared_nothing(config, device), *_resumed_dry_run(config)]


def _two_backends(config: RunConfig) -> list[Problem]:
    """`--op native` names a backend; another one beside it would go unheard."""
    if ":" in config.op or config.op == FAULTED_OP or config.backend in (None, config.op):
        return []
    expected = f"{config.op} or nothing ({config.where('op')} {config.op} is given)"
    return [Problem("request.backend", config.where("backend"), expected, str(config.backend))]


def _shared_nothing(config: RunConfig, device: str) -> list[Problem]:
    if config.shared_transport != "nccl" or (device == "cuda" and not config.virtual):
        return []
    got = "virtual ranks, in one process" if config.virtual else "ranks on the CPU"
    return [Problem("request.shared_transport", config.where("shared_transport"), "ranks that share a GPU", got)]


def _resumed_dry_run(config: RunConfig) -> list[Problem]:
    if not config.dry_run or config.resume is None:
        return []
    expected = f"nothing ({config.where('dry_run')} goes on with no run)"
    return [Problem("request.resume", config.where("resume"), expected, str(config.resume))]


def unused_notes(
    config: RunConfig, batches: Iterable[BatchPlan], device: str, transport: Transport
) -> tuple[str, ...]:
    """One line for each setting that was given and changes nothing here, or less than it says."""
    captures = [batch.name for batch in batches if batch.source == "capture" and batch.name != CONTROL.name]
    return (
        *_built_in_only(config, captures),
        *_no_shared_device(config, device, transport),
        *_foreign_backend(config),
        *_nothing_written(config),
    )


def _built_in_only(config: RunConfig, captures: Sequence[str]) -> tuple[str, ...]:
    given = [config.where(name) for name in ("seed", "sweep") if config.is_given(name)]
    if not captures or not given:
        return ()
    are, stay = "is" if len(given) == 1 else "are", "stays" if len(captures) == 1 else "stay"
    return (f"{' and '.join(given)} {are} for built-in batches: {', '.join(captures)} {stay} as captured",)


def _no_shared_device(config: RunConfig, device: str, transport: Transport) -> tuple[str, ...]:
    given = [name for name in ("ranks_per_device", "shared_transport") if config.is_given(name)]
    if config.virtual or device == "cpu":
        return tuple(for_gpus(config.where(name), is_virtual=config.virtual) for name in given)
    if "shared_transport" in given and transport == "nccl":
        return (f"{config.where('shared_transport')} changes nothing: every rank has a GPU of its own",)
    return ()


def for_gpus(where: str, *, is_virtual: bool = False) -> str:
    """The note on a setting of GPUs that was given to ranks without any."""
    return f"{where} is for GPUs, and these ranks are {'in one process' if is_virtual else 'on the CPU'}"


def _foreign_backend(config: RunConfig) -> tuple[str, ...]:
    if ":" not in config.op or config.backend is None:
        return ()
    given = f"{config.where('backend')} {config.backend}"
    if config.controls == "off":
        return (f"{given} changes nothing: {config.op} brings its own, and there are no planted faults",)
    return (f"{given} is that of the planted faults: {config.op} brings its own",)


def _nothing_written(config: RunConfig) -> tuple[str, ...]:
    if not config.dry_run:
        return ()
    given = [config.where(name) for name in ("out", "format") if config.is_given(name)]
    return (f"{' and '.join(given)}: a dry run prints this text, and writes nothing",) if given else ()


def not_for(config: RunConfig, names: Iterable[str], command: str) -> tuple[str, ...]:
    """One line on the flags among `names` that were typed, and that `command` has no use for."""
    typed = [config.where(name) for name in names if config.is_given(name)]
    typed = list(dict.fromkeys(place for place in typed if place.startswith("--")))
    if not typed:
        return ()
    return (f"{', '.join(typed)} {'changes' if len(typed) == 1 else 'change'} nothing in {command}",)
