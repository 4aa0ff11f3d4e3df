"""Other timing for each repeat: what depends on who comes first, and not on the contract, then shows itself.

A rank sleeps a random while before collectives and, more rarely, before any other operation, so that ranks
meet in ever new orders. On CUDA each repeat runs on a stream of its own, beside another that is kept busy. The
first run of a candidate is left alone: it is the one that the repeats are compared with. Only times are random:
what is computed, and in which order its sums are taken, stays as the contract has it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    draw = random.Random(f"{run}/{rank}")
    time.sleep(draw.uniform(0.0, LONGEST_SLEEP))
    with _Jitter(draw), _other_stream(device, draw):
        yield


class _Jitter(TorchDispatchMode):
    """Sleeps before operations: often before collectives, rarely before others."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        chance = 0.5 if func.namespace in COLLECTIVES else CHANCE_ELSEWHERE
        if self._draw.random() < chance:
            time.sleep(self._draw.uniform(0.0, LONGEST_SLEEP))
        return func(*args, **(kwargs or {}))


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
