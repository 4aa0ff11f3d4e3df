"""An op that ends the process in which it is imported or called, told as its error. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from grpo_contract import InputError, Problem
from harness.launching.status import Phase, StatusWriter
from harness.system.error_text import last_frame


class OpExitError(RuntimeError):
    """A call of the op that would have ended the process."""


@contextmanager
def exits_told(status: StatusWriter) -> Iterator[None]:
    """SystemExit, and whatever else is no Exception, as an error: as the op is imported it refuses the run."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as stop:
        got = f"{stop!r} at {last_frame(stop)}"
        if status.phase is Phase.START:
            raise InputError(Problem("input.op", "--op", "an op that does not end the process", got)) from stop
        raise OpExitError(f"the op ended the process: {got}") from stop
