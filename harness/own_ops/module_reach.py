"""What runs when a module is imported: the sources of it, of the packages above it, and of what these import.

Code that nobody has read may add names, modules and folders; where any is among them, nothing is certain.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, NamespaceLoader
from pathlib import Path

from harness.own_ops.module_source import BrokenSourceError, ModuleSource, UnsureError, find_module, read_module
from harness.provenance.foreign_folders import PACKAGES

_KNOWN = frozenset({*sys.stdlib_module_names, *PACKAGES, "torch", "triton", "numpy"})
"""Packages whose import changes neither the import path nor a module of anybody else, and that are not read."""
_MOST = 100
_BUILT_IN = {"exec", "eval", "globals", "locals", "vars", "setattr", "__import__", "__builtins__"}
_REACHING = {
    *("modules", "meta_path", "path_hooks", "addsitedir", "__path__", "import_module", "exec_module"),
    *("load_module", "runpy", "builtins", "__dict__", "__setattr__", "f_globals", "__globals__", "mock"),
}


@dataclass(frozen=True)
class Reach:
    """The sources that were read, by module, and whether others run beside them, installed or elsewhere."""

    sources: dict[str, ModuleSource]
    has_unread: bool


def reach_of(name: str, *, is_here: bool = True) -> Reach:
    """Everything that may run when `name` is imported, the imports inside functions among it.

    A package that is not there runs nothing, unless the import is on another machine.
    Raises UnsureError where it is not read, or can change what is imported, and BrokenSourceError where the
    module itself or a package above it is no Python.
    """
    own = with_parents(name)
    if own[0] in _KNOWN:
        raise UnsureError(name)
    waiting, seen, has_unread = [*own], set[str](), False
    sources: dict[str, ModuleSource] = {}
    while waiting:
        each = waiting.pop()
        if each in seen or each.partition(".")[0] in _KNOWN:
            continue
        seen.add(each)
        spec = find_module(each)
        if spec is None:
            has_unread = has_unread or (not is_here and "." not in each)
            continue
        if isinstance(spec.loader, NamespaceLoader | None):
            continue  # a folder without __init__.py
        if not f"{each}.".startswith(f"{own[0]}.") and _is_installed(spec):
            has_unread = True
            continue
        source = _read(each, spec, own)
        if source is None:
            continue
        if len(sources) == _MOST or can_change_imports(source):
            raise UnsureError(each)
        sources[each] = source
        waiting += [parent for used in _imported_by(source) for parent in with_parents(used)]
    return Reach(sources, has_unread)


def _read(name: str, spec: ModuleSpec, own: Sequence[str]) -> ModuleSource | None:
    """The source of a module; None for one that is no Python, and so runs no line, unless it is one of `own`."""
    try:
        return read_module(name, spec)
    except BrokenSourceError:
        if name in own:
            raise
        return None


def with_parents(name: str) -> list[str]:
    """The packages above a module, outermost first, and the module."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def base_of(module: ModuleSource, line: ast.ImportFrom) -> str:
    """The module that `from ... import` names."""
    parts = module.name.split(".")
    level = line.level - module.is_package
    base = parts[: max(len(parts) - level, 0)] if line.level else []
    return ".".join([*base, *([line.module] if line.module else [])])


def can_change_imports(module: ModuleSource) -> bool:
    """Whether a module may add to other modules, or to the import path, what no source shows."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Name(id=used) if used in _BUILT_IN:
                return True
            case ast.Name(id=used) | ast.Attribute(attr=used) | ast.alias(name=used) if used in _REACHING:
                return True
            case ast.Attribute(attr="path", value=base) if not (isinstance(base, ast.Name) and base.id == "os"):
                return True
            case ast.Constant(value=str(text)) if text in _REACHING or "sys.path" in text or "sys.modules" in text:
                return True
            case ast.ImportFrom(module="sys" | "builtins" | "importlib" | "site" | "runpy" | "unittest.mock"):
                return True
    return False


def _imported_by(module: ModuleSource) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and (base := base_of(module, node)):
            yield from (base if each.name == "*" else f"{base}.{each.name}" for each in node.names)


def _is_installed(spec: ModuleSpec) -> bool:
    folders = {"site-packages", "dist-packages"}
    return spec.origin is not None and bool(folders & set(Path(spec.origin).parts))
