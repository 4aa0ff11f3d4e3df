"""A foreign op looked up in its source, before anything is launched and without running a line of it.

Only what is certain is refused: a name that may come from a star import, a decorator or a call is left to the
ranks, which import it.
"""

from __future__ import annotations

import ast
from itertools import pairwise

from grpo_contract import Problem
from harness.own_ops.bindings import bindings_of, may_appear
from harness.own_ops.bound_op import Finding, judged
from harness.own_ops.module_reach import Reach, base_of, reach_of, with_parents
from harness.own_ops.module_source import BrokenSourceError, ModuleSource, UnsureError, find_module, modules_beside
from harness.settings.config_problems import suggestion

_LONGEST_CHAIN = 8


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
        found = Finding("a module that can be imported", f"which cannot: {error}")
    return None if found is None else Problem("request.op", where, found.expected, f"{op}, {found.got}")


def _looked_up(name: str, attribute: str, is_here: bool) -> Finding | None:
    top = name.partition(".")[0]
    if top == "__main__" or find_module(top) is None:  # a rank has another __main__ than this process
        expected = "package.module:attribute of an installed package or of one in this folder"
        return Finding(expected, f"and there is no package {top}")
    reach = reach_of(name, is_here=is_here)
    for package, full in pairwise(with_parents(name)):
        if find_module(full) is None:
            return _no_such_module(package, full, reach)
    if is_here and not reach.has_unread:
        for each in with_parents(name):
            _check_imports(reach.sources.get(each))
    return _in_module(reach, name, attribute)


def _no_such_module(package: str, full: str, reach: Reach) -> Finding | None:
    if reach.has_unread:
        return None
    hint = suggestion(full.rpartition(".")[2], modules_beside(package))
    return Finding(f"a module that is there{hint}", f"and there is no module {full}")


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


def _in_module(reach: Reach, name: str, attribute: str, chain: int = 0) -> Finding | None:
    """Look `attribute` up, through imports of other modules of which there is source."""
    module = reach.sources.get(name)
    first, *rest = attribute.split(".")
    if module is None or may_appear(module, first, reach):
        return None
    bindings = list(bindings_of(module.tree.body, first))
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
    return judged(bindings[0], first)


def _no_such_name(module: ModuleSource, name: str) -> Finding:
    lines = [line for line in module.tree.body if isinstance(line, ast.FunctionDef | ast.ClassDef)]
    known = [line.name for line in lines if not line.name.startswith("_")]
    return Finding(
        f"a name that {module.path.name} holds{suggestion(name, known)}", f"and there is no {name} in it"
    )
