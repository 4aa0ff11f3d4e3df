"""Other timing for each repeat: what depends on who comes first, and not on the contract, then shows itself.

A rank sleeps a random while before collectives and, more rarely, before any other operation, so that ranks
meet in ever new orders. Threads that the op starts, and tasks that it gives to a pool, sleep before they begin and
while they work, so that they finish in ever new orders too. On CUDA each repeat runs on a stream of its own,
beside another that is kept busy. The first run of a candidate is left alone: it is the one that the repeats are
compared with. Only times are random: what is computed, and in which order its sums are taken, stays as the
contract has it.
"""

from __future__ import annotations

import functools
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.thread import _worker as pool_worker
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

LONGEST_SLEEP = 0.004
"""Seconds; several times what a collective of a small batch takes."""
CHANCE_ELSEWHERE = 0.02
COLLECTIVES = ("c10d", "_c10d_functional")
_NOISE_SIZE = 1024
_NOISE_ROUNDS = 8


@contextmanager
def other_timing(run: int, rank: int, device: torch.device) -> Iterator[None]:
    """Disturb everything inside; `run` 0 is left alone. Equal arguments draw equal sleeps."""
    if run == 0:
        yield
        return
    span, draw = _Span(), random.Random(f"{run}/{rank}")
    time.sleep(draw.uniform(0.0, LONGEST_SLEEP))
    try:
        with _Jitter(draw, span), _other_stream(device, draw), _late_threads(f"{run}/{rank}", span):
            yield
    finally:
        span.is_over = True


@dataclass
class _Span:
    """The disturbed time; a thread that outlives it is left alone from then on."""

    is_over: bool = False


class _Jitter(TorchDispatchMode):
    """Sleeps before operations: often before collectives, rarely before others."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled code compiled: run eagerly it may give other bits, and time would be blamed for them."""
        return True

    def __init__(self, draw: random.Random, span: _Span) -> None:
        super().__init__()
        self._draw, self._span = draw, span

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        chance = 0.5 if func.namespace in COLLECTIVES else CHANCE_ELSEWHERE
        if not self._span.is_over and self._draw.random() < chance:
            time.sleep(self._draw.uniform(0.0, LONGEST_SLEEP))
        return func(*args, **(kwargs or {}))


@contextmanager
def _late_threads(seed: str, span: _Span) -> Iterator[None]:
    """Delay what is handed to other threads: a mode of torch holds for the thread alone that entered it.

    Each one draws by the order in which they were handed over, so that equal arguments draw equal sleeps.
    Processes, and threads of native code, are out of reach.
    """
    numbers = itertools.count()
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def late(work: Callable[..., Any]) -> Callable[..., Any]:
        draw = random.Random(f"{seed}/{next(numbers)}")

        @functools.wraps(work)
        def disturbed(*args: Any, **kwargs: Any) -> Any:
            time.sleep(draw.uniform(0.0, LONGEST_SLEEP))
            with _Jitter(draw, span):
                return work(*args, **kwargs)

        return disturbed

    def start_late(thread: threading.Thread) -> None:
        if getattr(thread, "_target", None) is not pool_worker:  # its tasks are delayed one by one
            thread.run = late(thread.run)  # type: ignore[method-assign]
        start(thread)

    def submit_late(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return submit(pool, late(work), *args, **kwargs)

    threading.Thread.start = start_late  # type: ignore[method-assign, assignment]
    ThreadPoolExecutor.submit = submit_late  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]


@contextmanager
def _other_stream(device: torch.device, draw: random.Random) -> Iterator[None]:
    """A fresh stream for the work inside, while another is kept busy with work of random length."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.current_stream(device)
    noise, own = torch.cuda.Stream(device), torch.cuda.Stream(device)
    with torch.cuda.stream(noise):
        busy = torch.ones(_NOISE_SIZE, _NOISE_SIZE, device=device)
        for _ in range(draw.randrange(_NOISE_ROUNDS)):
            busy = busy @ busy
    own.wait_stream(before)
    with torch.cuda.stream(own):
        yield
    before.wait_stream(own)
    noise.synchronize()
