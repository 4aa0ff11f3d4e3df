"""What gives a name its meaning in the source of a module, and where another may come from unseen."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from harness.own_ops.module_reach import Reach
from harness.own_ops.module_source import ModuleSource, find_module

_SUPPLIED = {
    *("apply", "__call__", "__init__", "__new__", "__class__", "__getattr__"),
    *("__code__", "__signature__", "__defaults__", "__kwdefaults__"),
}
"""Attributes that make an op of something else when they are assigned later."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bindings_of(body: Iterable[ast.stmt], name: str) -> Iterator[ast.stmt]:
    """Statements of a module that give `name` a meaning, those inside `if`, `try` and loops among them."""
    for line in body:
        if name in _bound_by(line):
            yield line
        if not isinstance(line, _SCOPES):
            for child in ast.iter_child_nodes(line):
                block = [child] if isinstance(child, ast.stmt) else getattr(child, "body", [])
                yield from bindings_of(block if isinstance(block, list) else [], name)


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


def may_appear(module: ModuleSource, name: str, reach: Reach) -> bool:
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
