"""Where ranks sit: on the CPU, one on each GPU, several on one GPU, or all of a layout in one process."""

from __future__ import annotations

from dataclasses import dataclass

from harness.planning.planned import Transport
from harness.settings.devices import Device, Machine, resolve_device
from harness.settings.run_config import RunConfig

SHARED_BY_DEFAULT = 4


@dataclass(frozen=True)
class Seating:
    """Device, what carries the ranks' tensors, ranks on one device, and how many ranks fit (None: no limit)."""

    device: Device
    transport: Transport
    ranks_per_device: int
    available_ranks: int | None


ON_CPU = Seating("cpu", "gloo", 1, None)


def seat(config: RunConfig, machine: Machine) -> Seating:
    """The seating of `config` on `machine`.

    A lone GPU holds four ranks unless degrees were asked for. Raises RequestError when CUDA was asked for by name
    and is not there.
    """
    device, devices = resolve_device(config, machine)
    if config.virtual:
        return Seating(device, "virtual", 1, None)
    if devices is None:
        return ON_CPU
    shared: Transport = "nccl-shared-gpu" if config.shared_transport == "nccl" else "gloo-shared-gpu"
    return on_gpus(devices, config.ranks_per_device, _wanted(config, devices), shared)


def on_gpus(
    devices: int, ranks_per_device: int | None, wanted: int, shared: Transport = "gloo-shared-gpu"
) -> Seating:
    """GPUs are shared where `ranks_per_device` asks for it, or else where the `wanted` ranks exceed them.

    `shared` is what carries the tensors of ranks that share one.
    """
    each = ranks_per_device or -(-wanted // devices)
    return Seating("cuda", "nccl" if each == 1 else shared, each, devices * each)


def _wanted(config: RunConfig, devices: int) -> int:
    degrees = [(config.tp or 1) * (config.dp or 1), *(tp * dp for tp, dp in config.chosen_layouts)]
    if config.layouts or config.tp or config.dp:
        return max(degrees)
    return SHARED_BY_DEFAULT if devices == 1 else devices
