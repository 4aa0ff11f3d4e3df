"""What a name is bound to in a module's source, judged as an op."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from harness.own_ops.loss_signature import CALLABLE, OP, call_problem, required, signature_of

_NOT_CALLED = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)
_PLAIN = (ast.FunctionDef, ast.Pass, ast.Constant)


@dataclass(frozen=True)
class Finding:
    """What stands against an op: `expected` and, after the op's own name, what is there instead."""

    expected: str
    got: str


def judged(bound: ast.stmt, name: str) -> Finding | None:
    """What stands against the op that `bound` makes of `name`; None where nothing is certain."""
    match bound:
        case ast.AsyncFunctionDef(decorator_list=[]):
            return Finding(CALLABLE, "an async function, which returns no loss")
        case ast.FunctionDef(decorator_list=[]):
            return _misfit("a function that takes", bound.args, bound=False)
        case ast.ClassDef(decorator_list=[], keywords=[]):
            return _class(bound)
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return _value(value)
        case ast.AnnAssign(target=ast.Name(id=target), value=value) if target == name:
            return _value(value)
    return None


def _value(value: ast.expr | None) -> Finding | None:
    if isinstance(value, ast.Lambda):
        return _misfit("a lambda that takes", value.args, bound=False)
    return Finding(OP, "which cannot be called") if isinstance(value, _NOT_CALLED) else None


def _class(bound: ast.ClassDef) -> Finding | None:
    """Only a class of plain methods, on top of nothing, is as it looks."""
    methods = {line.name: line for line in bound.body if isinstance(line, ast.FunctionDef)}
    plain = all(isinstance(line.value if isinstance(line, ast.Expr) else line, _PLAIN) for line in bound.body)
    bases = [base for base in bound.bases if not (isinstance(base, ast.Name) and base.id == "object")]
    if bases or not plain or {"__new__", "__getattr__", "__getattribute__"} & methods.keys():
        return None
    made = methods.get("__init__")
    if made is not None and made.decorator_list:
        return None
    if made is not None and (needed := required(signature_of(made.args, bound=True))):
        got = f"a class whose __init__ needs {', '.join(needed)}"
        return Finding("a class that can be built without arguments", got)
    for name in ("apply", "__call__"):
        if name in methods:
            return _method(methods[name])
    only = "a class with forward alone" if "forward" in methods else "a class"
    return Finding(CALLABLE, f"{only}, without apply or __call__")


def _method(method: ast.FunctionDef) -> Finding | None:
    marks = [each.id if isinstance(each, ast.Name) else "?" for each in method.decorator_list]
    if not set(marks) <= {"staticmethod", "classmethod"}:
        return None
    return _misfit(f"a class whose {method.name} takes", method.args, bound="staticmethod" not in marks)


def _misfit(prefix: str, args: ast.arguments, *, bound: bool) -> Finding | None:
    signature = signature_of(args, bound=bound)
    why = call_problem(signature)
    return None if why is None else Finding(CALLABLE, f"{prefix} {signature}: {why}")
