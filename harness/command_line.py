"""The command `grpo-verify`. The only module here, beside the worker's main, that prints.

It imports the standard library alone until signals are answered, and never torch: help, a saved report and a
refused request cost a fraction of a second.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from harness.provenance.foreign_folders import foreign_folders
from harness.stdio import open_missing_streams, write
from harness.system.signals import INTERRUPTS, finish_first, raise_lost, raised_signals, status_of

NAME = "grpo-verify"
REFUSED, BROKEN = 2, 4
SIGNALLED = 128
"""Statuses above it say that a signal ended the run."""


def run_command(tokens: list[str]) -> int:
    """Run one command line and return its exit status; no exception leaves this function."""
    open_missing_streams()
    try:
        with raised_signals():
            return _answer([token for token in tokens if token != "--debug"], debug="--debug" in tokens)
    except INTERRUPTS as stop:
        write(sys.stderr, f"{NAME}: {stop.args[0] if stop.args else 'interrupted'}\n")
        return status_of(stop)


def _answer(tokens: list[str], *, debug: bool) -> int:
    if foreign := foreign_folders():
        write(sys.stderr, f"{NAME}: invalid request: {'; '.join(foreign)}\n")
        return REFUSED
    try:
        from harness.commands import answer

        text, status = answer(tokens, _progress)
    except SystemExit as stop:  # rich ends the process when the reader of --help is gone
        raise_lost()
        return stop.code if isinstance(stop.code, int) else 0
    except Exception as error:
        raise_lost()  # it may be a signal's own exception, in the clothes of what it went through
        return _failed(error, tokens, debug)
    finish_first()
    try:
        write(sys.stdout, text)
    except OSError as error:  # a status without its report would pass for a verdict
        write(sys.stderr, f"{NAME}: stdout cannot be written: {error.strerror or error}\n")
        return status if status > SIGNALLED else BROKEN
    return status


def _failed(error: Exception, tokens: list[str], debug: bool) -> int:
    """One message on stderr, with --json a report that says the same, and never a bare traceback."""
    try:
        from harness.outcomes import outcome_of

        outcome = outcome_of(error, [NAME, *tokens], debug=debug)
    except Exception:  # a broken installation: nothing of ours can be imported
        raise_lost()
        write(sys.stderr, f"{NAME}: internal error: {type(error).__name__}: {error}\n")
        return BROKEN
    finish_first()
    write(sys.stderr, outcome.err)
    with suppress(OSError):  # stderr has said it
        write(sys.stdout, outcome.out)
    return outcome.status


def _progress(line: str) -> None:
    write(sys.stderr, f"{line}\n")
