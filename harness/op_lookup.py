"""A foreign op looked up in its source, before anything is launched and without running a line of it.

Only what is certain is refused: a name that may come from a star import, a decorator or a call is left to the
ranks, which import it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from grpo_contract import Problem
from harness.config_problems import suggestion
from harness.loss_signature import CALL, call_problem, required, signature_of
from harness.module_source import (
    BrokenSourceError,
    ModuleSource,
    check_imports,
    find_module,
    is_there,
    may_hold_more,
    modules_beside,
    read_module,
)

OP = "an op with `apply`, or a function"
CALLABLE = f"{OP}, that takes {CALL}"
_DYNAMIC = {"globals", "locals", "vars", "exec", "eval", "setattr", "__import__", "import_module", "modules"}
_LONGEST_CHAIN = 8
_NOT_CALLED = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)


@dataclass(frozen=True)
class _Finding:
    """What stands against an op: `expected` and, after the op's own name, what is there instead."""

    expected: str
    got: str


def op_problem(op: str, where: str) -> Problem | None:
    """What is certain to be wrong with `package.module:attribute`; None where only the ranks can tell."""
    name, _, attribute = op.partition(":")
    found = _missing_module(name)
    if found is None:
        try:
            module = read_module(name)
            found = None if module is None else _in_module(module, attribute)
        except BrokenSourceError as error:
            found = _Finding("a module that can be imported", f"which cannot: {error}")
    return None if found is None else Problem("request.op", where, found.expected, f"{op}, {found.got}")


def _missing_module(name: str) -> _Finding | None:
    parts = name.split(".")
    if not is_there(parts[0]):
        expected = "package.module:attribute of an installed package or of one in this folder"
        return _Finding(expected, f"and there is no package {parts[0]}")
    for length in range(1, len(parts)):
        package, full = ".".join(parts[:length]), ".".join(parts[: length + 1])
        if find_module(full) is None:
            hint = suggestion(parts[length], modules_beside(package))
            missing = _Finding(f"a module that is there{hint}", f"and there is no module {full}")
            return None if may_hold_more(package) else missing
    return None


def _in_module(module: ModuleSource, attribute: str, chain: int = 0) -> _Finding | None:
    """Look `attribute` up, through imports of other modules of which there is source."""
    check_imports(module)
    first, *rest = attribute.split(".")
    bindings = list(_bindings(module.tree.body, first))
    if not bindings:
        return None if _may_appear(module, first) else _no_such_name(module, first)
    if len(bindings) > 1 or rest or chain > _LONGEST_CHAIN:
        return None
    (bound,) = bindings
    if isinstance(bound, ast.ImportFrom):
        return _imported(module, bound, first, chain)
    if isinstance(bound, ast.Assign) and isinstance(bound.value, ast.Name):
        return _in_module(module, bound.value.id, chain + 1)
    return _judged(bound)


def _imported(module: ModuleSource, bound: ast.ImportFrom, name: str, chain: int) -> _Finding | None:
    alias = next(each for each in bound.names if (each.asname or each.name) == name)
    parts = module.name.split(".")
    level = bound.level - module.is_package
    base = parts[: len(parts) - level] if bound.level else []
    source = read_module(".".join([*base, *(bound.module.split(".") if bound.module else [])]))
    return None if source is None else _in_module(source, alias.name, chain + 1)


def _bindings(body: Iterable[ast.stmt], name: str) -> Iterator[ast.stmt]:
    """Statements of a module that give `name` a meaning, those inside `if`, `try` and loops among them."""
    for line in body:
        if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if line.name == name:
                yield line
        elif isinstance(line, ast.Import | ast.ImportFrom):
            if any((each.asname or each.name.partition(".")[0]) == name for each in line.names):
                yield line
        else:
            inner = [found for block in _blocks(line) for found in _bindings(block, name)]
            yield from inner
            if not inner and _stores(line, name):
                yield line


def _blocks(line: ast.stmt) -> list[list[ast.stmt]]:
    within = [getattr(line, block, []) for block in ("body", "orelse", "finalbody")]
    return within + [each.body for each in (*getattr(line, "handlers", ()), *getattr(line, "cases", ()))]


def _stores(line: ast.stmt, name: str) -> bool:
    names = (node for node in ast.walk(line) if isinstance(node, ast.Name))
    return any(node.id == name and isinstance(node.ctx, ast.Store) for node in names)


def _may_appear(module: ModuleSource, name: str) -> bool:
    """Whether a module that gives `name` no meaning in plain sight may have it all the same."""
    for node in ast.walk(module.tree):
        match node:
            case ast.ImportFrom(names=names) if any(each.name == "*" for each in names):
                return True
            case ast.FunctionDef(name="__getattr__"):
                return True
            case ast.Global(names=names) if name in names:
                return True
            case ast.Name(id=used) | ast.Attribute(attr=used) if used in _DYNAMIC:
                return True
    return module.is_package and find_module(f"{module.name}.{name}") is not None


def _no_such_name(module: ModuleSource, name: str) -> _Finding:
    lines = [line for line in module.tree.body if isinstance(line, ast.FunctionDef | ast.ClassDef)]
    known = [line.name for line in lines if not line.name.startswith("_")]
    return _Finding(
        f"a name that {module.path.name} holds{suggestion(name, known)}", f"and there is no {name} in it"
    )


def _judged(bound: ast.stmt) -> _Finding | None:
    match bound:
        case ast.AsyncFunctionDef():
            return _Finding(CALLABLE, "an async function, which returns no loss")
        case ast.FunctionDef(decorator_list=[]):
            return _misfit("a function that takes", bound.args, bound=False)
        case ast.ClassDef(decorator_list=[], keywords=[]):
            return _class(bound)
        case ast.Assign(targets=[ast.Name()], value=value) | ast.AnnAssign(value=value):
            return _value(value)
    return None


def _value(value: ast.expr | None) -> _Finding | None:
    if isinstance(value, ast.Lambda):
        return _misfit("a lambda that takes", value.args, bound=False)
    return _Finding(OP, "which cannot be called") if isinstance(value, _NOT_CALLED) else None


def _class(bound: ast.ClassDef) -> _Finding | None:
    """Only a class of plain methods, on top of nothing, is as it looks."""
    methods = {line.name: line for line in bound.body if isinstance(line, ast.FunctionDef)}
    plain = all(isinstance(line, ast.FunctionDef | ast.Expr | ast.Pass) for line in bound.body)
    bases = [base for base in bound.bases if not (isinstance(base, ast.Name) and base.id == "object")]
    if bases or not plain or {"__new__", "__getattr__"} & methods.keys():
        return None
    made = methods.get("__init__")
    if made is not None and (needed := required(signature_of(made.args, bound=True))):
        got = f"a class whose __init__ needs {', '.join(needed)}"
        return _Finding("a class that can be built without arguments", got)
    for name in ("apply", "__call__"):
        if name in methods:
            return _method(methods[name])
    only = "a class with forward alone" if "forward" in methods else "a class"
    return _Finding(CALLABLE, f"{only}, without apply or __call__")


def _method(method: ast.FunctionDef) -> _Finding | None:
    marks = [each.id if isinstance(each, ast.Name) else "?" for each in method.decorator_list]
    if not set(marks) <= {"staticmethod", "classmethod"}:
        return None
    return _misfit(f"a class whose {method.name} takes", method.args, bound="staticmethod" not in marks)


def _misfit(prefix: str, args: ast.arguments, *, bound: bool) -> _Finding | None:
    signature = signature_of(args, bound=bound)
    why = call_problem(signature)
    return None if why is None else _Finding(CALLABLE, f"{prefix} {signature}: {why}")
