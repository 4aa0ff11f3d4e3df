"""The commands of `grpo-verify`: each turns its arguments into a text for stdout and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from grpo_contract import Problem
from harness.files.report_files import write_formats
from harness.inspect_commands import compare, reveal, snapshot_app
from harness.planning.listings import ops_text, plan_text, settings_text
from harness.settings.config_sources import load_config
from harness.settings.flags import Answer, Flags, with_flags
from harness.settings.out_folder import REPORT, check_out
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig
from harness.settings.usage_errors import usage_error
from harness.stdio import MOST_COLUMNS, Look, is_absent, look_of, speak_utf8
from harness.system.regular_file import read_regular
from harness.version import version
from harness.workloads.train_command import train_command
from reports import Report, render

NAME = "grpo-verify"
OnProgress = Callable[[str], None]
STATUSES = (
    "Exit status: 0 proven, 1 drift, 2 refused, 3 nothing proven, 4 broken. --debug shows the traceback of an "
    "internal error."
)
FLAGS_ALONE = f"Takes its settings from the command line alone. {STATUSES}"


def answer(tokens: Sequence[str], on_progress: OnProgress) -> Answer:
    """Parse and run one command line. Raises RequestError for a mistake in it; prints nothing but help."""
    app = _app(tokens, on_progress)
    try:
        command, bound, _ = app.parse_args(_lone_hyphens_last(tokens), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise usage_error(error, app) from None
    found: Answer | None = command(*bound.args, **bound.kwargs)
    return found or ("", 0)


def _lone_hyphens_last(tokens: Sequence[str]) -> list[str]:
    """`show - --quiet` as `show --quiet -- -`: the parser would take a lone hyphen for a flag."""
    if list(tokens[:1]) != ["show"] or "--" in tokens or "-" not in tokens:
        return [*tokens]
    return [*(token for token in tokens if token != "-"), "--", *(token for token in tokens if token == "-")]


def _app(tokens: Sequence[str], on_progress: OnProgress) -> App:
    app = App(
        name=NAME,
        help="Prove, bit by bit, that a GRPO loss gives the same answer however the work is split over ranks.",
        help_epilogue=f"Settings also come from [tool.grpo-verify] in pyproject.toml and from GRPO_VERIFY_* "
        f"variables. {STATUSES}",
        help_format="plaintext",
        version=version,
    )

    @with_flags
    def run(flags: Flags) -> Answer:
        """Verify a loss over TP x DP layouts, and the verification itself with planted faults."""
        return run_plan(load_config(flags), (NAME, *tokens), on_progress)

    app.default(run)
    reading = (run, plan, config)
    for command in (run, plan, show, config, ops, reveal, compare):
        app.command(command, help_epilogue=None if command in reading else FLAGS_ALONE)
    app.command(snapshot_app((NAME, *tokens)))
    app.command(train_command((NAME, *tokens), on_progress), name="train", help_epilogue=FLAGS_ALONE)
    return app


def run_plan(settings: RunConfig, command: Sequence[str], on_progress: OnProgress) -> Answer:
    """Plan, launch and report one run; `command` is the command line, for the report."""
    # On demand, so that other commands do not pay for them.
    from harness.runs.request import plan_for
    from harness.runs.resume import request_for
    from harness.runs.run import run as launch

    if settings.dry_run:
        return plan_text(plan_for(settings)), 0
    progress = _silent if settings.quiet else on_progress
    plan, earlier, out = request_for(settings)
    report = launch(plan, out=out, on_progress=progress, command=command, earlier=earlier)
    look = look_of(sys.stdout, settings.color)
    text = _rendered(report, settings, look)
    return "" if settings.out and is_absent(sys.stdout) else text, report.exit_status


def show(
    report: str,
    /,
    *,
    format: str = "terminal",
    out: str | None = None,
    width: int | None = None,
    color: Literal["auto", "always", "never"] = "auto",
    quiet: Annotated[bool, Parameter(negative=())] = False,
) -> Answer:
    """Render a saved report; the exit status is the report's own.

    Parameters
    ----------
    report
        The JSON report, a folder given to --out, or - for standard input.
    format
        Any format of a run; further ones, after commas, are written into --out.
    out
        Folder for further formats.
    width
        Columns, at most 1000; by default those of the terminal.
    color
        Colours in the report.
    quiet
        Only the outcome.
    """
    given: dict[str, Any] = {} if out is None else {"out": out}
    settings = RunConfig(format=format, quiet=quiet, **given)
    check_out(settings.out, "--out")
    if width is not None and not 1 <= width <= MOST_COLUMNS:
        expected = "at least 1" if width < 1 else f"at most {MOST_COLUMNS}"
        raise RequestError(Problem("request.width", "--width", expected, str(width)))
    loaded = Report.from_json(_report_text(report))
    return _rendered(loaded, settings, look_of(sys.stdout, color, width)), loaded.exit_status


@with_flags
def plan(flags: Flags) -> Answer:
    """Write a run into --out DIR for your own torchrun, on one node or several; takes the flags of a run."""
    from harness.runs.node_plan import prepare_nodes

    return prepare_nodes(load_config(flags)), 0


@with_flags
def config(flags: Flags) -> Answer:
    """Print every effective setting and where it came from; takes the flags of a run."""
    return settings_text(load_config(flags)), 0


def ops() -> Answer:
    """List the ops, their backends, and why a backend is not available on this machine."""
    from harness.settings.devices import resolve_device, this_machine
    from loss_ops import kernel_registry

    device, _ = resolve_device(RunConfig(), this_machine())
    return ops_text(kernel_registry.describe(device)), 0


def _rendered(report: Report, settings: RunConfig, look: Look) -> str:
    """The first format; the others are written into the folder."""
    first, *others = settings.formats
    if others and settings.out is not None:
        write_formats(report, others, settings.out)
    if first != "terminal":
        speak_utf8(sys.stdout)
    return render(report, first, quiet=settings.quiet, **look)


def _report_text(name: str) -> str:
    path = Path(name)
    path = path / REPORT if path.is_dir() else path
    try:
        if name == "-":
            return sys.stdin.read() if sys.stdin else ""
        return path.read_text(encoding="utf-8") if _is_handed_over(path) else read_regular(path)
    except OSError as error:
        got = error.strerror or str(error)
    except UnicodeDecodeError:
        got = "bytes that are not UTF-8"
    raise RequestError(Problem("request.report", str(path), "a saved JSON report", got))


def _is_handed_over(path: Path) -> bool:
    """Whether the shell put a pipe there for this command, as in `show <(...)`: it has a writer."""
    return path.parent in (Path("/dev/fd"), Path("/proc/self/fd")) or path == Path("/dev/stdin")


def _silent(_line: str) -> None:
    return None
