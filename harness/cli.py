"""The entry of the command `grpo-verify`.

It imports nothing but sys until it can answer Ctrl-C: what comes before is Python's own start-up.
"""

import sys

TYPE_CHECKING = False  # typing's own takes a while to import
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command line and return its exit status; no exception leaves this function."""
    try:
        from harness.command_line import run_command

        return run_command(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:  # before the command's own handlers are in place, or after they are gone
        print("grpo-verify: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
