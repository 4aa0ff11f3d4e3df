"""Timing on a CUDA device: interleaved samples, medians with their spread, and the floor set by memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

Case = Callable[[], Any]
FLUSH_BYTES = 1 << 30


@dataclass(frozen=True)
class Timing:
    """Milliseconds. `median`, `least`, `most`: one call on the device, host ahead, caches flushed.

    `loop` is the time per call of calls one after the other, where the host may be what one waits for; `host`
    the time until a call returns. `extra_mb` is the peak memory that a call adds to what it was given.
    """

    median: float
    least: float
    most: float
    loop: float
    host: float
    extra_mb: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return {name: round(value, 5) for name, value in asdict(self).items()}


def measure(cases: Mapping[str, Case], *, repeats: int = 21, warmup: int = 3) -> dict[str, Timing]:
    """Time every case `repeats` times, in turn, so that a drift of the clocks meets all of them alike."""
    flush = torch.empty(2, FLUSH_BYTES // 2, dtype=torch.uint8, device="cuda")
    extra = {name: extra_memory(case, warmup) for name, case in cases.items()}
    samples: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(8):
                flush[0].copy_(flush[1])  # empties the caches and gives the host a lead of about two milliseconds
            begin.record()
            case()
            end.record()
            samples[name].append((begin, end))
        torch.cuda.synchronize()
    del flush
    return {name: _timing(pairs, cases[name], extra[name]) for name, pairs in samples.items()}


def _timing(pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]], case: Case, extra_mb: float) -> Timing:
    times = [begin.elapsed_time(end) for begin, end in pairs]
    loop, host = _loop(case, statistics.median(times))
    return Timing(statistics.median(times), min(times), max(times), loop, host, extra_mb)


def _loop(case: Case, expected_ms: float) -> tuple[float, float]:
    calls = max(5, min(100, int(60 / max(expected_ms, 0.05))))
    torch.cuda.synchronize()
    start = time.perf_counter()
    case()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        case()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls * 1e3, host * 1e3


def extra_memory(case: Case, warmup: int) -> float:
    """Peak megabytes (2**20) above what was allocated before the call."""
    for _ in range(warmup):
        case()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    case()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def copy_bandwidth() -> float:
    """Bytes per millisecond of a large copy on the device, read and written bytes both counted."""
    source = torch.empty(1 << 30, dtype=torch.float16, device="cuda").normal_()
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return 2 * source.numel() * source.element_size() / statistics.median(times[2:])


def device_or_reason() -> str | None:
    """Why nothing can be timed here, or None."""
    return None if torch.cuda.is_available() else "needs a CUDA device"
