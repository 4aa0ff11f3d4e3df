"""A foreign op looked up in its source, before anything is launched and without running a line of it.

Only what is certain is refused: a name that may come from a star import, a decorator or a call is left to the
ranks, which import it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from grpo_contract import Problem
from harness.own_ops.loss_signature import CALLABLE, OP, call_problem, required, signature_of
from harness.own_ops.module_reach import Reach, base_of, reach_of, with_parents
from harness.own_ops.module_source import BrokenSourceError, ModuleSource, UnsureError, find_module, modules_beside
from harness.settings.config_problems import suggestion

_SUPPLIED = {
    *("apply", "__call__", "__init__", "__new__", "__class__", "__getattr__"),
    *("__code__", "__signature__", "__defaults__", "__kwdefaults__"),
}
"""Attributes that make an op of something else when they are assigned later."""
_LONGEST_CHAIN = 8
_NOT_CALLED = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)
_PLAIN = (ast.FunctionDef, ast.Pass, ast.Constant)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class _Finding:
    """What stands against an op: `expected` and, after the op's own name, what is there instead."""

    expected: str
    got: str


def op_problem(op: str, where: str, *, is_here: bool = True) -> Problem | None:
    """What is certain to be wrong with `package.module:attribute`; None where only the ranks can tell.

    Where the ranks run on another machine, the packages that the op imports may be there alone.
    """
    name, _, attribute = op.partition(":")
    try:
        found = _looked_up(name, attribute, is_here)
    except (UnsureError, RecursionError):
        return None
    except BrokenSourceError as error:
        found = _Finding("a module that can be imported", f"which cannot: {error}")
    return None if found is None else Problem("request.op", where, found.expected, f"{op}, {found.got}")


def _looked_up(name: str, attribute: str, is_here: bool) -> _Finding | None:
    top = name.partition(".")[0]
    if top == "__main__" or find_module(top) is None:  # a rank has another __main__ than this process
        expected = "package.module:attribute of an installed package or of one in this folder"
        return _Finding(expected, f"and there is no package {top}")
    reach = reach_of(name, is_here=is_here)
    for package, full in pairwise(with_parents(name)):
        if find_module(full) is None:
            return _no_such_module(package, full, reach)
    if is_here and not reach.has_unread:
        for each in with_parents(name):
            _check_imports(reach.sources.get(each))
    return _in_module(reach, name, attribute)


def _no_such_module(package: str, full: str, reach: Reach) -> _Finding | None:
    if reach.has_unread:
        return None
    hint = suggestion(full.rpartition(".")[2], modules_beside(package))
    return _Finding(f"a module that is there{hint}", f"and there is no module {full}")


def _check_imports(module: ModuleSource | None) -> None:
    """Raise BrokenSourceError for a package that the module needs at once and that is not there.

    Imports inside `try`, `if` or a function may fail.
    """
    for line in [] if module is None else module.tree.body:
        names = [alias.name for alias in line.names] if isinstance(line, ast.Import) else []
        if isinstance(line, ast.ImportFrom) and line.module and not line.level:
            names = [line.module]
        for name in names:
            if module is not None and find_module(top := name.partition(".")[0]) is None:
                raise BrokenSourceError(f"{module.path.name}:{line.lineno}: there is no package {top}")


def _in_module(reach: Reach, name: str, attribute: str, chain: int = 0) -> _Finding | None:
    """Look `attribute` up, through imports of other modules of which there is source."""
    module = reach.sources.get(name)
    first, *rest = attribute.split(".")
    if module is None or _may_appear(module, first, reach):
        return None
    bindings = list(_bindings(module.tree.body, first))
    if not bindings:
        return _no_such_name(module, first)
    if len(bindings) > 1 or rest or chain > _LONGEST_CHAIN:
        return None
    match bindings:
        case [ast.ImportFrom(names=names) as line]:
            alias = next(each for each in names if (each.asname or each.name) == first)
            return _in_module(reach, base_of(module, line), alias.name, chain + 1)
        case [ast.Assign(targets=[ast.Name(id=bound)], value=ast.Name(id=other))] if bound == first:
            return _in_module(reach, name, other, chain + 1)
    return _judged(bindings[0], first)


def _bindings(body: Iterable[ast.stmt], name: str) -> Iterator[ast.stmt]:
    """Statements of a module that give `name` a meaning, those inside `if`, `try` and loops among them."""
    for line in body:
        if name in _bound_by(line):
            yield line
        if not isinstance(line, _SCOPES):
            for child in ast.iter_child_nodes(line):
                block = [child] if isinstance(child, ast.stmt) else getattr(child, "body", [])
                yield from _bindings(block if isinstance(block, list) else [], name)


def _bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds itself, apart from those in its blocks; the variables of a comprehension,
    and of a function, stay inside."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (each.asname or each.name.partition(".")[0] for each in names)
        case ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name
    if isinstance(node, (*_SCOPES, ast.Lambda)):
        return
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt) and not (isinstance(node, ast.comprehension) and child is node.target):
            yield from _bound_by(child)


def _may_appear(module: ModuleSource, name: str, reach: Reach) -> bool:
    """Whether `name` may have another meaning than, or one without, what is in plain sight."""
    for node in ast.walk(module.tree):
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                return True
            case ast.Global(names=names) if name in names:
                return True
            case ast.stmt() if "__getattr__" in _bound_by(node):
                return True
            case ast.Call() if reach.has_unread and _is_handed_on(node, {name, "__name__"}):
                return True
    assigned = (each for source in reach.sources.values() for each in ast.walk(source.tree))
    if any(_supplies(each, name) for each in assigned):
        return True
    return module.is_package and find_module(f"{module.name}.{name}") is not None


def _is_handed_on(call: ast.Call, names: set[str]) -> bool:
    """Whether a call, perhaps of code that nobody has read, is given what one of the names means."""
    given = [*call.args, *(each.value for each in call.keywords)]
    return any(isinstance(node, ast.Name) and node.id in names for each in given for node in ast.walk(each))


def _supplies(node: ast.AST, name: str) -> bool:
    """Whether an assignment to an attribute may give a module the name, or what the name means another call."""
    if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
        return False
    is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr in _SUPPLIED or (node.attr == name and not is_own)


def _no_such_name(module: ModuleSource, name: str) -> _Finding:
    lines = [line for line in module.tree.body if isinstance(line, ast.FunctionDef | ast.ClassDef)]
    known = [line.name for line in lines if not line.name.startswith("_")]
    return _Finding(
        f"a name that {module.path.name} holds{suggestion(name, known)}", f"and there is no {name} in it"
    )


def _judged(bound: ast.stmt, name: str) -> _Finding | None:
    match bound:
        case ast.AsyncFunctionDef(decorator_list=[]):
            return _Finding(CALLABLE, "an async function, which returns no loss")
        case ast.FunctionDef(decorator_list=[]):
            return _misfit("a function that takes", bound.args, bound=False)
        case ast.ClassDef(decorator_list=[], keywords=[]):
            return _class(bound)
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return _value(value)
        case ast.AnnAssign(target=ast.Name(id=target), value=value) if target == name:
            return _value(value)
    return None


def _value(value: ast.expr | None) -> _Finding | None:
    if isinstance(value, ast.Lambda):
        return _misfit("a lambda that takes", value.args, bound=False)
    return _Finding(OP, "which cannot be called") if isinstance(value, _NOT_CALLED) else None


def _class(bound: ast.ClassDef) -> _Finding | None:
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
