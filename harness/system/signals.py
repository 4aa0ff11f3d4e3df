"""SIGINT, SIGTERM and SIGHUP: facts to look at while ranks run, exceptions before that, then a little patience.

What is computed must not be lost to an impatient second: once there is a result, a signal lets it be written. A
SIGHUP that is ignored, as under nohup, stays ignored.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WORDS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
# How long a result may take to be written after the first signal; a reader that has stopped never takes it.
GRACE_SECONDS = 3.0


class Terminated(BaseException):
    """SIGTERM arrived."""


class HungUp(BaseException):
    """SIGHUP arrived: the terminal is gone."""


INTERRUPTS = (KeyboardInterrupt, Terminated, HungUp)


def status_of(stop: BaseException) -> int:
    """The exit status after one of INTERRUPTS: 130, 143 or 129."""
    return 128 + next(number for number in CAUGHT if isinstance(stop, _exception(number)))


def _exception(number: int) -> type[BaseException]:
    return dict(zip(CAUGHT, INTERRUPTS, strict=True))[signal.Signals(number)]


class _Handler:
    """Raises one of INTERRUPTS: at once, or, when finishing, at the second signal or after the grace.

    `received` is the first signal that it raised for: its exception may get lost in native code.
    """

    def __init__(self) -> None:
        self.finishing = False
        self.received: int | None = None
        self._held: tuple[float, float] | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.finishing and self._held is None:
            self._alarm = signal.signal(signal.SIGALRM, lambda *_: self._raise(number))
            self._held = signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        elif not self.finishing or number != signal.SIGHUP:  # a terminal that closes may say so twice
            self._raise(number)

    def _raise(self, number: int) -> None:
        self.received = self.received or number
        raise _exception(number)(_WORDS[number])

    def let_go(self) -> None:
        """Give back the timer, if a signal was held."""
        if self._held is not None:
            signal.setitimer(signal.ITIMER_REAL, *self._held)
            _restore({signal.SIGALRM: self._alarm})


@contextmanager
def raised_signals() -> Iterator[None]:
    """Signals as INTERRUPTS (see `finish_first`); old handlers come back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Handler()
    before = {each: signal.signal(each, handler) for each in _heeded()}
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


def raise_lost() -> None:
    """Raise for a signal that was raised for before, if what it ran through made something else of that."""
    if (number := _received()) is not None:
        raise _exception(number)(_WORDS[number])


def _received() -> int | None:
    handler = signal.getsignal(signal.SIGTERM)
    return handler.received if isinstance(handler, _Handler) else None


@contextmanager
def caught_signals() -> Iterator[list[str]]:
    """A list that grows by the name of each signal received; old handlers come back at the end.

    Handlers belong to the main thread. In another thread the list stays empty.
    """
    names: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield names
        return

    if (lost := _received()) is not None:
        names.append(signal.Signals(lost).name)

    def note(number: int, _frame: FrameType | None) -> None:
        names.append(signal.Signals(number).name)

    before = {each: signal.signal(each, note) for each in _heeded()}
    try:
        yield names
    finally:
        _restore(before)


def _heeded() -> list[signal.Signals]:
    return [each for each in CAUGHT if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]


def _restore(before: Mapping[signal.Signals, Any]) -> None:
    for each, handler in before.items():
        signal.signal(each, signal.SIG_DFL if handler is None else handler)
