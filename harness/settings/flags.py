"""The flags of a run, derived from RunConfig: cyclopts only collects text, the model judges all of it at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

from cyclopts import Group, Parameter
from pydantic.fields import FieldInfo

from harness.settings.batch_spec import BUILT_IN, FAMILIES
from harness.settings.run_config import RunConfig
from harness.settings.setting_names import CONTRACT_NAMES, SPELLINGS, flag_name
from reports.formats import RENDERERS

Flags = Mapping[str, Any]
Answer = tuple[str, int]
"""Text for stdout and an exit status."""
_REQUEST = Group("What to verify", sort_key=0)
_CONTRACT = Group("Contract (default: the batch's own)", sort_key=1)
_RUN = Group("How to run", sort_key=2)
REPORT_GROUP = Group("Report", sort_key=3)
REPORT_FLAGS = ("format", "json", "out", "quiet", "color")
_GROUPS = {
    **dict.fromkeys(("tp", "dp", "layouts", "op", "backend", "batch", "seed", "dtype"), _REQUEST),
    **dict.fromkeys((*CONTRACT_NAMES, "tiles"), _CONTRACT),
    **dict.fromkeys(REPORT_FLAGS, REPORT_GROUP),
}
_CHOICES = {"format": tuple(RENDERERS), "batch": (*BUILT_IN, *FAMILIES)}
_METAVARS = {"out": "DIR", "resume": "DIR", "layouts": "TxD,...", "timeout": "SECONDS", "backend": "NAME"}
_SPELLING_HELP = {"json": "the same as --format json", "no_controls": "the same as --controls off"}


def with_flags(body: Callable[[Flags], Answer]) -> Callable[..., Answer]:
    """A command that takes every flag of a run and hands those that were given to `body`."""

    def command(**flags: Any) -> Answer:
        return body(flags)

    command.__name__, command.__doc__ = body.__name__, body.__doc__
    return with_flags_of(RunConfig.model_fields, _GROUPS, command)


def with_flags_of(
    fields: Mapping[str, FieldInfo], groups: Mapping[str, Group], command: Callable[..., Answer]
) -> Callable[..., Answer]:
    """`command`, which takes any keyword, with one flag for each field and spelling; the rest is "How to run"."""
    hints: dict[str, Any] = {}
    for name, field in fields.items():
        hints[name] = _setting_hint(name, field, groups.get(name, _RUN))
        spellings = [short for short, (target, _) in SPELLINGS.items() if target == name]
        hints |= {short: _spelling_hint(short, groups.get(short, _RUN)) for short in spellings}
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, keyword, default=None, annotation=hints[name]) for name in hints]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = hints
    return command


def _setting_hint(name: str, field: FieldInfo, group: Group) -> Any:
    kind = _kind(field)
    is_many = get_origin(field.annotation) is tuple
    hint: Any = bool | None if kind is bool else (tuple[str, ...] | None if is_many else str | None)
    help_text = f"{field.description}{_choices_text(name, kind)}{_default_text(field)}"
    return Annotated[
        hint,
        Parameter(
            name=flag_name(name),
            help=help_text,
            metavar=None if kind is bool else _metavar(name, kind),
            group=group,
            negative_iterable=(),
            show_default=False,
        ),
    ]


def _spelling_hint(name: str, group: Group) -> Any:
    return Annotated[
        bool | None,
        Parameter(name=flag_name(name), help=_SPELLING_HELP[name], negative=(), group=group, show_default=False),
    ]


def _kind(field: FieldInfo) -> Any:
    """The type of one value: without None, without the tuple around it, without its constraints."""
    hint = field.annotation
    if get_origin(hint) is tuple:
        hint = get_args(hint)[0]
    options = [each for each in get_args(hint) if each is not type(None)]
    if options and get_origin(hint) is not Literal:
        hint = options[0]
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _choices_text(name: str, kind: Any) -> str:
    choices = _CHOICES.get(name, ())
    if get_origin(kind) is Literal:
        choices = get_args(kind)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        choices = tuple(str(each.value) for each in kind)
    return f" ({', '.join(choices)})" if choices else ""


def _default_text(field: FieldInfo) -> str:
    value = field.default
    if value is None or value is False or value == ():
        return ""
    values = value if isinstance(value, tuple) else (value,)
    return f" [default: {', '.join(str(getattr(each, 'value', each)) for each in values)}]"


def _metavar(name: str, kind: Any) -> str:
    if name in _METAVARS:
        return _METAVARS[name]
    return {int: "N", float: "X"}.get(kind, "NAME")
