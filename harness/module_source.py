"""Modules found and parsed without importing them, nor any package above them."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


class BrokenSourceError(Exception):
    """A module that cannot be imported, whoever tries: where, and why."""


@dataclass(frozen=True)
class ModuleSource:
    """A module's source, parsed."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    is_package: bool


def is_there(package: str) -> bool:
    """Whether ranks will find a package of this name, installed or in the user's folder."""
    # A rank has another __main__ than this process.
    return package.isidentifier() and package != "__main__" and _top_spec(package) is not None


def find_module(name: str) -> ModuleSpec | None:
    """The spec of a dotted name where ranks will look for it; None where there is no such module."""
    top, *rest = name.split(".")
    spec, full = _top_spec(top), top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        full = f"{full}.{part}"
        spec = PathFinder.find_spec(full, list(spec.submodule_search_locations))
    return spec


def read_module(name: str) -> ModuleSource | None:
    """The module's source; None where it has none. Raises BrokenSourceError for one that is no Python."""
    spec = find_module(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    path = Path(spec.origin)
    try:
        content = path.read_bytes()
        tree = ast.parse(content, str(path))
    except OSError:
        return None
    except SyntaxError as error:
        raise BrokenSourceError(f"{path.name}:{error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise BrokenSourceError(f"{path.name}: {error}") from None
    text = content.decode("utf-8", "replace")
    return ModuleSource(name, path, text, tree, spec.submodule_search_locations is not None)


def check_imports(module: ModuleSource) -> None:
    """Raise BrokenSourceError for a package that the module needs at once and that is not there.

    Imports inside `try`, `if` or a function may fail; so may all where the module changes its path.
    """
    if "sys.path" in module.text:
        return
    for line in module.tree.body:
        names = [alias.name for alias in line.names] if isinstance(line, ast.Import) else []
        if isinstance(line, ast.ImportFrom) and line.module and not line.level:
            names = [line.module]
        for name in names:
            if not is_there(top := name.partition(".")[0]):
                raise BrokenSourceError(f"{module.path.name}:{line.lineno}: there is no package {top}")


def may_hold_more(package: str) -> bool:
    """Whether a package may hold modules that no file of its own shows: compiled, or with a path it changes."""
    spec = find_module(package)
    if spec is not None and spec.origin is None:
        return False  # a folder without __init__.py
    try:
        source = read_module(package)
    except BrokenSourceError:
        return False
    return source is None or "__path__" in source.text


def modules_beside(package: str) -> list[str]:
    """The names of the source files of a package."""
    spec = find_module(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    return [path.stem for folder in folders for path in Path(folder).glob("*.py") if path.stem != "__init__"]


def _top_spec(package: str) -> ModuleSpec | None:
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    # Ranks see the user's folder last on their import path.
    return found or importlib.machinery.PathFinder.find_spec(package, [os.getcwd()])
