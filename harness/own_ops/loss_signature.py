"""How a sharded loss op is called, and whether a stranger's function can be called so. No torch."""

from __future__ import annotations

import ast
import inspect

POSITIONAL = ("policy_local_logits", "action_ids", "old_logps", "rewards")
KEYWORDS = ("contract", "sharding", "completion_mask", "ref_local_logits", "tp_group", "dp_group")
CALL = f"({', '.join(POSITIONAL)}, *, {', '.join(KEYWORDS)})"
OP = "an op with `apply`, or a function"
CALLABLE = f"{OP}, that takes {CALL}"


class _SomeDefault:
    """Stands for a default that is written in source and not evaluated."""

    def __repr__(self) -> str:
        return "..."


def call_problem(signature: inspect.Signature) -> str | None:
    """Why a function of this signature cannot be called as a loss op is; None where it can."""
    try:
        signature.bind(*POSITIONAL, **dict.fromkeys(KEYWORDS))
    except TypeError as error:
        return str(error)
    return None


def required(signature: inspect.Signature) -> list[str]:
    """The parameters that a call has to give."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = signature.parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind not in variadic]


def signature_of(args: ast.arguments, *, bound: bool) -> inspect.Signature:
    """The signature of a parsed function; `bound` takes the first argument, self, away."""
    kinds, some = inspect.Parameter, _SomeDefault()
    positional = [
        *((each.arg, kinds.POSITIONAL_ONLY) for each in args.posonlyargs),
        *((each.arg, kinds.POSITIONAL_OR_KEYWORD) for each in args.args),
    ]
    without = len(positional) - len(args.defaults)
    made = [
        kinds(name, kind, default=kinds.empty if index < without else some)
        for index, (name, kind) in enumerate(positional)
    ]
    made = made[1:] if bound else made
    if args.vararg:
        made.append(kinds(args.vararg.arg, kinds.VAR_POSITIONAL))
    for each, value in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        made.append(kinds(each.arg, kinds.KEYWORD_ONLY, default=kinds.empty if value is None else some))
    if args.kwarg:
        made.append(kinds(args.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(made)
