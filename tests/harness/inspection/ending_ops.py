"""Ops of a stranger that never answer: they end, stop or break the process they are called in."""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def exits(*_tensors: Any, **_context: Any) -> None:
    print("an op's own words")
    sys.exit(0)


def exits_at_once(*_tensors: Any, **_context: Any) -> None:
    os._exit(0)


def is_killed(*_tensors: Any, **_context: Any) -> None:
    os.kill(os.getpid(), 9)


def raises(*_tensors: Any, **_context: Any) -> None:
    raise RuntimeError("no such luck")


def is_interrupted(*_tensors: Any, **_context: Any) -> None:
    raise KeyboardInterrupt


def sleeps(*_tensors: Any, **_context: Any) -> None:
    time.sleep(600)
