"""The command `grpo-verify`. The only module here, beside the worker's main, that prints and exits.

It imports the standard library alone until `main` runs, so that Ctrl-C is answered alike from the first
moment, and never torch: help, a saved report and a refused request cost a fraction of a second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from harness.foreign_folders import foreign_folders
from harness.signals import Terminated, finish_first, raised_signals
from harness.stdio import open_missing_streams, write

NAME = "grpo-verify"
REFUSED, BROKEN, INTERRUPTED, TERMINATED = 2, 4, 130, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; no exception leaves this function."""
    open_missing_streams()
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        with raised_signals():
            return _answer([token for token in tokens if token != "--debug"], debug="--debug" in tokens)
    except KeyboardInterrupt:
        write(sys.stderr, f"{NAME}: interrupted\n")
        return INTERRUPTED
    except Terminated:
        write(sys.stderr, f"{NAME}: terminated\n")
        return TERMINATED


def _answer(tokens: list[str], *, debug: bool) -> int:
    if foreign := foreign_folders():
        write(sys.stderr, f"{NAME}: invalid request: {'; '.join(foreign)}\n")
        return REFUSED
    try:
        from harness.commands import answer

        text, status = answer(tokens, _progress)
    except SystemExit as stop:  # rich ends the process when the reader of --help is gone
        return stop.code if isinstance(stop.code, int) else 0
    except Exception as error:
        return _failed(error, tokens, debug)
    finish_first()
    try:
        write(sys.stdout, text)
    except OSError as error:  # a status without its report would pass for a verdict
        write(sys.stderr, f"{NAME}: stdout cannot be written: {error.strerror or error}\n")
        return BROKEN
    return status


def _failed(error: Exception, tokens: list[str], debug: bool) -> int:
    """One message on stderr, with --json a report that says the same, and never a bare traceback."""
    try:
        from harness.outcomes import outcome_of

        outcome = outcome_of(error, [NAME, *tokens], debug=debug)
    except Exception:  # a broken installation: nothing of ours can be imported
        write(sys.stderr, f"{NAME}: internal error: {type(error).__name__}: {error}\n")
        return BROKEN
    finish_first()
    write(sys.stderr, outcome.err)
    with suppress(OSError):  # stderr has said it
        write(sys.stdout, outcome.out)
    return outcome.status


def _progress(line: str) -> None:
    write(sys.stderr, f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
