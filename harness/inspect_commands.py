"""The commands `reveal`, `compare` and `snapshot`: they look at one op in one process, and launch no ranks.

`reveal` and `snapshot` work on the user's op in a child process (`apart`): torch stays out of this one.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from harness.inspection.apart import work_apart
from harness.planning.planned import Plan
from harness.settings.config_sources import current_folder, load_config
from harness.settings.flags import Answer, Flags, with_flags
from harness.settings.out_folder import check_folder, check_there
from harness.settings.run_config import RunConfig
from harness.stdio import look_of

_NOT_OF_A_SNAPSHOT = (
    "tp", "dp", "layouts", "virtual", "ranks_per_device", "shared_transport", "controls", "repeat", "stress",
    "dry_run", "out", "resume",
)  # fmt: skip
"""Flags of a run that say nothing to an op at 1x1 in one process."""
_NOT_OF_A_LIST = ("format", "quiet", "color")
Switch = Annotated[bool, Parameter(negative=(), show_default=False)]
Number = Annotated[int, Parameter(show_default=True)]


def reveal(
    *,
    op: str = "grpo_loss",
    backend: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    tp: int | None = None,
    dp: int | None = None,
    layouts: str | None = None,
    tokens: Number = 16,
    columns: Number = 16,
    tiles: Number = 4,
    sequences: Number = 8,
    timeout: Annotated[float, Parameter(show_default=True)] = 120.0,
    json: Switch = False,
) -> Answer:
    """Find, from outside, in which order an op adds, and where two layouts add in different orders.

    Parameters
    ----------
    op
        The loss: grpo_loss, a backend of it (native, triton), or package.module:attribute.
    backend
        Implementation of grpo_loss: native or triton; without it the best that is available.
    device
        Where the op runs; a GPU where there is one.
    dtype
        Type of the logits that carry the probes; sums are asked in whatever type the op adds.
    tp
        Largest tensor-parallel degree, by default 2; its divisors are asked too.
    dp
        Largest data-parallel degree, by default 2; its divisors are asked too.
    layouts
        Exactly these TPxDP layouts, such as 4x1,1x4, in place of --tp and --dp.
    tokens
        Slots of the token sum.
    columns
        Columns of the vocabulary sum.
    tiles
        Vocabulary tiles that hold these columns.
    sequences
        Sequences of the batch.
    timeout
        Seconds without an answer of the op before it is ended.
    json
        The trees as JSON.
    """
    from harness.own_ops.op_names import check_backend, check_op
    from harness.settings.devices import resolve_device, this_machine

    typed = {"layouts": layouts, "tp": tp, "dp": dp, "backend": backend}
    given: dict[str, Any] = {name: value for name, value in typed.items() if value is not None}
    if layouts is None:
        given = {"tp": 2 if tiles > 1 else 1, "dp": 2} | given
    settings = RunConfig(op=op, device=device, timeout=timeout, **given)
    current_folder()
    check_op(settings)
    check_backend(settings, resolve_device(settings, this_machine())[0])
    sizes = {"sequences": sequences, "tokens": tokens, "columns": columns, "tiles": tiles, "dtype": dtype}
    given |= {"op": op, "device": device}
    return work_apart("revealed", op=op, timeout=settings.timeout, given=given, sizes=sizes, as_json=json)


def compare(a: Path, b: Path, /, *, json: Switch = False) -> Answer:
    """Compare two reports or two snapshots: what changed in contract and environment, then in numbers.

    Parameters
    ----------
    a
        A JSON report, a folder given to --out, or a snapshot folder.
    b
        Another of the same kind.
    json
        Every change as JSON.
    """
    from harness.inspection.compare import compare_subjects, load_subject
    from harness.inspection.comparison_text import comparison_json, comparison_text

    found = compare_subjects(load_subject(a), load_subject(b), (a, b))
    render = comparison_json if json else comparison_text
    return render((str(a), str(b)), found), found.status


def snapshot_app(command_line: Sequence[str]) -> App:
    """`snapshot save DIR` and `snapshot check DIR`; both take the flags of a run."""
    app = App(name="snapshot", help="Keep an op's numbers at 1x1 as digests, and check against them later.")

    def save(folder: Path, update: bool, flags: Flags) -> Answer:
        """Add what the snapshot in DIR lacks; what differs is replaced with --update alone."""
        return _saved(folder, load_config(flags), update)

    def check(folder: Path, update: bool, flags: Flags) -> Answer:
        """Compare with the snapshot in DIR; obtained is kept beside expected, and only --update replaces it."""
        return _checked(folder, load_config(flags), update, command_line)

    for body in (save, check):
        app.command(_with_folder(body), name=body.__name__)
    return app


def _with_folder(body: Callable[[Path, bool, Flags], Answer]) -> Callable[..., Answer]:
    """A command that takes DIR and --update beside every flag of a run."""

    def command(folder: Path, /, *, update: bool = False, **flags: Any) -> Answer:
        return body(folder, update, flags)

    def flags_only(flags: Flags) -> Answer:
        raise NotImplementedError(flags)

    rest = list(inspect.signature(with_flags(flags_only)).parameters.values())
    place, switch = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY
    hint = Annotated[bool, Parameter(negative=(), help="replace what the snapshot holds and differs")]
    own = [
        inspect.Parameter("folder", place, annotation=Annotated[Path, Parameter(help="the snapshot's folder")]),
        inspect.Parameter("update", switch, default=False, annotation=hint),
    ]
    command.__signature__ = inspect.Signature([*own, *rest])  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in (*own, *rest)}
    command.__name__, command.__doc__ = body.__name__, body.__doc__
    return command


def _plan(settings: RunConfig) -> Plan:
    """The plan of the run at 1x1, without planted faults."""
    from harness.runs.request import plan_for

    used = [name for name in RunConfig.model_fields if name not in _NOT_OF_A_SNAPSHOT]
    given = {name: getattr(settings, name) for name in used if settings.is_given(name)}
    return plan_for(RunConfig(**given, layouts=("1x1",), controls="off"))


def _saved(folder: Path, settings: RunConfig, update: bool) -> Answer:
    check_folder(folder, "DIR")
    plan, notes = _plan(settings), _unused(settings, (*_NOT_OF_A_SNAPSHOT, *_NOT_OF_A_LIST))
    return _apart("saved", settings, plan, folder, update, notes)


def _checked(folder: Path, settings: RunConfig, update: bool, command_line: Sequence[str]) -> Answer:
    if not update:
        check_there(folder)
    plan = _plan(settings)
    notes = (*_unused(settings, _NOT_OF_A_SNAPSHOT), *plan.batch_notes)
    more = {"command_line": command_line, "wanted": (settings.formats[0], settings.quiet)}
    look = look_of(sys.stdout, settings.color)
    return _apart("checked", settings, plan, folder, update, notes, look=look, **more)


def _apart(
    function: str, settings: RunConfig, plan: Plan, folder: Path, update: bool, notes: Sequence[str], **more: Any
) -> Answer:
    told = {"plan": plan.model_dump_json(), "folder": str(folder), "update": update, "notes": notes, **more}
    return work_apart(function, op=settings.op, timeout=settings.timeout, **told)


def _unused(settings: RunConfig, names: Sequence[str]) -> tuple[str, ...]:
    from harness.planning.unused_flags import not_for

    return not_for(settings, names, "a snapshot, which is one op at 1x1 in one process")
