"""Signals by which torchrun ends its ranks: heard at once, even while the main thread waits in C++."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

TORCHRUNS = (signal.SIGTERM, signal.SIGHUP)
"""Signals by which torchrun ends its ranks."""


class Terminated(Exception):
    """A signal arrived, as it says: torchrun ends its other ranks when one fails, or somebody ends the job."""


def hear(act: Callable[[str], object], *, grace: float, interrupt: bool) -> None:
    """Call `act`, from a thread, with the name of the first signal, `grace` seconds after it arrived.

    With `interrupt` it is also raised as Terminated in the main thread, as soon as that runs Python code; a
    main thread that waits inside a collective does not, which is why there is a thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for each in TORCHRUNS:
        signal.signal(each, _interrupt if interrupt else _note)
    threading.Thread(target=_watch, args=(readable, act, grace), daemon=True, name="torchruns-signals").start()


def hear_no_more() -> None:
    """Ignore them from now on: who ends already has said so, and must come to the end of it."""
    if threading.current_thread() is not threading.main_thread():
        return
    signal.set_wakeup_fd(-1)
    for each in TORCHRUNS:
        signal.signal(each, signal.SIG_IGN)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    for each in TORCHRUNS:
        signal.signal(each, signal.SIG_IGN)
    raise Terminated(signal.Signals(number).name)


def _note(_number: int, _frame: FrameType | None) -> None:
    """A handler in Python is what makes the number arrive in the pipe; without one the process just ends."""


def _watch(readable: int, act: Callable[[str], object], grace: float) -> None:
    while (number := os.read(readable, 1)[0]) not in TORCHRUNS:
        pass
    time.sleep(grace)
    act(signal.Signals(number).name)
