"""SIGINT and SIGTERM: facts to look at while ranks run, exceptions before that, and after it a little patience.

What is computed must not be lost to an impatient second: once there is a result, a signal lets it be written.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

CAUGHT = (signal.SIGINT, signal.SIGTERM)
# How long a result may take to be written after the first signal; a reader that has stopped never takes it.
GRACE_SECONDS = 3.0


class Terminated(BaseException):
    """SIGTERM arrived."""


class _Handler:
    """Raises KeyboardInterrupt or Terminated: at once, or, when finishing, at the second or after the grace."""

    def __init__(self) -> None:
        self.finishing = False
        self._held: tuple[float, float] | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if not self.finishing or self._held is not None:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        self._alarm = signal.signal(signal.SIGALRM, lambda *_: self(number, None))
        self._held = signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)

    def let_go(self) -> None:
        """Give back the timer, if a signal was held."""
        if self._held is not None:
            signal.setitimer(signal.ITIMER_REAL, *self._held)
            _restore({signal.SIGALRM: self._alarm})


@contextmanager
def raised_signals() -> Iterator[None]:
    """SIGINT and SIGTERM as KeyboardInterrupt and Terminated (see `finish_first`); old handlers come back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Handler()
    before = {each: signal.signal(each, handler) for each in CAUGHT}
    try:
        yield
    finally:
        _restore(before)
        handler.let_go()


def finish_first() -> None:
    """From here on the first signal leaves GRACE_SECONDS to end in order. Only inside `raised_signals`."""
    handler = signal.getsignal(signal.SIGTERM)
    if isinstance(handler, _Handler):
        handler.finishing = True


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
        _restore(before)


def _restore(before: Mapping[signal.Signals, Any]) -> None:
    for each, handler in before.items():
        signal.signal(each, signal.SIG_DFL if handler is None else handler)
