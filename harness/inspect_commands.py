"""The commands `reveal`, `compare` and `snapshot`: they look, in this process, and launch nothing.

torch is imported only once one of them runs.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from harness.config_sources import load_config
from harness.flags import Answer, Flags, with_flags
from harness.run_config import RunConfig
from harness.stdio import look_of

_NOT_OF_A_SNAPSHOT = (
    "tp", "dp", "layouts", "virtual", "ranks_per_device", "shared_transport", "controls", "repeat", "stress",
    "timeout", "dry_run", "out", "resume",
)  # fmt: skip
"""Flags of a run that say nothing to an op at 1x1 in this process."""
_NOT_OF_A_LIST = ("format", "quiet", "color")
Switch = Annotated[bool, Parameter(negative=(), show_default=False)]
Number = Annotated[int, Parameter(show_default=True)]


def reveal(
    *,
    op: str = "grpo_loss",
    backend: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    tp: int = 2,
    dp: int = 2,
    layouts: str | None = None,
    tokens: Number = 16,
    columns: Number = 16,
    tiles: Number = 4,
    sequences: Number = 8,
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
        Largest tensor-parallel degree; its divisors are asked too.
    dp
        Largest data-parallel degree; its divisors are asked too.
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
    json
        The trees as JSON.
    """
    from harness.op_names import check_op

    given: dict[str, Any] = {"layouts": layouts} if layouts else {"tp": tp, "dp": dp}
    given |= {"backend": backend} if backend else {}
    settings = RunConfig(op=op, device=device, **given)
    check_op(settings)
    return _revealed(settings, (sequences, tokens, columns, tiles, dtype), json)


def _revealed(settings: RunConfig, sizes: tuple[int, int, int, int, str], as_json: bool) -> Answer:
    _reach_the_users_folder()
    import torch

    from harness import reveal as revealing
    from harness.devices import resolve_device, this_machine
    from harness.layouts import layouts_of
    from harness.op_probes import ProbeShape
    from harness.reveal_text import Asked, reveal_content, reveal_text

    torch.set_num_threads(1)
    shape, device = ProbeShape(*sizes), resolve_device(settings, this_machine())[0]
    op = revealing.op_to_ask(settings.op, settings.backend, shape, device)
    found = revealing.reveal(op, layouts_of(settings, None), shape, device=device)
    asked = Asked.of(settings.op, op, device, shape.dtype)
    text = json.dumps(reveal_content(asked, found), indent=2) + "\n" if as_json else reveal_text(asked, found)
    return text, revealing.reveal_status(found)


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
    from harness.compare import compare_subjects, load_subject
    from harness.comparison_text import comparison_json, comparison_text

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


def _plan(settings: RunConfig) -> Any:
    """The plan of the run at 1x1, without planted faults, and the user's folder on the path."""
    from harness.request import plan_for

    _reach_the_users_folder()
    used = [name for name in RunConfig.model_fields if name not in _NOT_OF_A_SNAPSHOT]
    given = {name: getattr(settings, name) for name in used if settings.is_given(name)}
    return plan_for(RunConfig(**given, layouts=("1x1",), controls="off"))


def _saved(folder: Path, settings: RunConfig, update: bool) -> Answer:
    plan = _plan(settings)
    from harness.snapshots.check import State, check_entries
    from harness.snapshots.obtain import obtain

    found = check_entries(folder, obtain(plan), save=True, update=update)
    lines = [f"{each.state.value}: {each.entry.name}: {each.why}" for each in found]
    lines += [f"note: {note}" for note in _unused(settings, (*_NOT_OF_A_SNAPSHOT, *_NOT_OF_A_LIST))]
    drifted = any(each.state is State.DRIFT for each in found)
    end = "kept as it was; --update replaces what differs" if drifted else f"snapshot in {folder}"
    return "\n".join([*lines, end, ""]), 1 if drifted else 0


def _checked(folder: Path, settings: RunConfig, update: bool, command_line: Sequence[str]) -> Answer:
    plan = _plan(settings)
    from harness.snapshots.check import check_entries
    from harness.snapshots.obtain import obtain
    from harness.snapshots.report import snapshot_report
    from reports import render

    notes = (*_unused(settings, _NOT_OF_A_SNAPSHOT), *_batch_notes(plan))
    report = snapshot_report(check_entries(folder, obtain(plan), update=update), folder, command_line, notes)
    look = look_of(sys.stdout, settings.color)
    return render(report, settings.formats[0], quiet=settings.quiet, **look), report.exit_status


def _unused(settings: RunConfig, names: Sequence[str]) -> tuple[str, ...]:
    from harness.unused_flags import not_for

    return not_for(settings, names, "a snapshot, which is one op at 1x1 in one process")


def _batch_notes(plan: Any) -> list[str]:
    return [note for batch in plan.batches.values() for note in batch.notes]


def _reach_the_users_folder() -> None:
    """Ops are found where the command stands, last on the path, as in the ranks of a run."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
