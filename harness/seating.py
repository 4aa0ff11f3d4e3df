"""Where ranks sit: on the CPU, one on each GPU, several on one GPU, or all of a layout in one process."""

from __future__ import annotations

from dataclasses import dataclass

from harness.devices import Device, Machine, resolve_device
from harness.planned import Transport
from harness.run_config import RunConfig

SHARED_BY_DEFAULT = 4


@dataclass(frozen=True)
class Seating:
    """Device, what carries the ranks' tensors, ranks on one device, and how many ranks fit (None: no limit)."""

    device: Device
    transport: Transport
    ranks_per_device: int
    available_ranks: int | None


def seat(config: RunConfig, machine: Machine) -> Seating:
    """The seating of `config` on `machine`.

    GPUs are shared where that was asked for, or where the degrees asked for exceed them; a lone GPU holds four
    ranks. Raises RequestError when CUDA was asked for by name and is not there.
    """
    device, devices = resolve_device(config, machine)
    if config.virtual:
        return Seating(device, "virtual", 1, None)
    if devices is None:
        return Seating(device, "gloo", 1, None)
    each = config.ranks_per_device or _needed_per_device(config, devices)
    return Seating(device, "nccl" if each == 1 else "gloo-shared-gpu", each, devices * each)


def _needed_per_device(config: RunConfig, devices: int) -> int:
    degrees = [(config.tp or 1) * (config.dp or 1), *(tp * dp for tp, dp in config.chosen_layouts)]
    asked = config.layouts or config.tp or config.dp
    wanted = max(degrees) if asked else (SHARED_BY_DEFAULT if devices == 1 else devices)
    return -(-wanted // devices)
