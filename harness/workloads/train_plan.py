"""The plan of a comparison of training runs, as data: which degree, which trainer, what must come out."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from grpo_contract import Problem, TokenNormalizer
from harness.planning.layouts import divisors
from harness.planning.planned import Transport
from harness.planning.seating import ON_CPU, Seating, on_gpus
from harness.planning.unused_flags import for_gpus
from harness.settings.devices import Machine, resolve_device, this_machine
from harness.settings.request_error import RequestError
from harness.workloads.train_settings import TrainSettings

CONTROL_UPDATES = 3
CONTROL_MICRO_BATCH = 3


class TrainCase(BaseModel):
    """One training run at a DP degree, compared with one rank's. `settings` are its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    name: str
    degree: int
    settings: TrainSettings
    mistake: Literal["local_mean", "micro_batch_mean"] | None = None
    expect: Literal["match", "caught", "any"] = "match"
    skip: str | None = None


class TrainPlan(BaseModel):
    """Everything the workers need to know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ranks: int
    device: Literal["cpu", "cuda"]
    transport: Transport = "gloo"
    ranks_per_device: int = 1
    timeout: float
    cases: tuple[TrainCase, ...]
    notes: tuple[str, ...] = ()


def plan_training(settings: TrainSettings, machine: Machine | None = None) -> TrainPlan:
    """The run itself at every degree above 1 that divides `dp` (at 1 when there is none), then the controls.

    Raises RequestError when the machine (by default this one) has no place for `dp` ranks.
    """
    seating = seat_training(settings, machine)
    degrees = [degree for degree in divisors(settings.dp) if degree > 1] or [1]
    cases: list[dict[str, Any]] = [
        {"name": f"{settings.workload} dp {degree}", "degree": degree, "settings": settings} for degree in degrees
    ]
    if settings.controls == "on":
        cases += _controls(settings)
    numbered = tuple(TrainCase.model_validate({"index": index, **case}) for index, case in enumerate(cases))
    return TrainPlan(
        ranks=settings.dp,
        device=seating.device,
        transport=seating.transport,
        ranks_per_device=seating.ranks_per_device,
        timeout=settings.timeout,
        cases=numbered,
        notes=_notes(settings, seating),
    )


def _notes(settings: TrainSettings, seating: Seating) -> tuple[str, ...]:
    if settings.ranks_per_device is None or seating.device != "cpu":
        return ()
    return (for_gpus(settings.where("ranks_per_device")),)


def seat_training(settings: TrainSettings, machine: Machine | None = None) -> Seating:
    """Where the ranks sit: GPUs are shared where that was asked for, or where `dp` exceeds them.

    Raises RequestError when CUDA was asked for and is not there, or holds fewer ranks than `dp`.
    """
    if settings.device == "cpu":
        return ON_CPU
    _, devices = resolve_device(settings, machine or this_machine())
    if devices is None:
        return ON_CPU
    seating = on_gpus(devices, settings.ranks_per_device, settings.dp)
    if settings.dp > devices * seating.ranks_per_device:
        of_device = f"CUDA devices x {settings.where('ranks_per_device')}"
        expected = f"at most {devices} x {seating.ranks_per_device} ({of_device})"
        raise RequestError(Problem("request.dp", settings.where("dp"), expected, str(settings.dp)))
    return seating


def _controls(settings: TrainSettings) -> list[dict[str, Any]]:
    """Mistakes on the tiny policy, whatever is trained. A local mean is right where all shares weigh the same."""
    tiny = TrainSettings(updates=CONTROL_UPDATES, device=settings.device)
    token_mean = tiny.model_copy(update={"normalizer": TokenNormalizer.GLOBAL_ACTIVE_TOKENS})
    cut = {"micro_batch": CONTROL_MICRO_BATCH}
    found = [
        _control("gradients_all_reduced", tiny.model_copy(update={"combine": "all_reduce"}), None, "caught"),
        _control("local_mean_of_tokens", token_mean, "local_mean", "caught"),
        _control("micro_batch_mean_of_tokens", token_mean.model_copy(update=cut), "micro_batch_mean", "caught"),
        _control("local_mean_of_sequences", tiny, "local_mean", "any"),
    ]
    skip = "needs at least 2 ranks" if settings.dp == 1 else None
    return [{**control, "degree": settings.dp, "skip": skip} for control in found]


def _control(name: str, settings: TrainSettings, mistake: str | None, expect: str) -> dict[str, Any]:
    return {"name": name, "settings": settings, "mistake": mistake, "expect": expect}
