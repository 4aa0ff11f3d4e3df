"""SIGINT and SIGTERM as facts to look at, instead of exceptions in the middle of cleaning up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CAUGHT = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def caught_signals() -> Iterator[list[str]]:
    """A list that grows by the name of each SIGINT or SIGTERM received; old handlers come back at the end.

    Handlers belong to the main thread. In another thread the list stays empty.
    """
    names: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield names
        return

    def note(number: int, _frame: FrameType | None) -> None:
        names.append(signal.Signals(number).name)

    before = {each: signal.signal(each, note) for each in CAUGHT}
    try:
        yield names
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
