"""Modules found and parsed without importing them, nor any package above them."""

from __future__ import annotations

import ast
import os
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path


class BrokenSourceError(Exception):
    """A module that cannot be imported, whoever tries: where, and why."""


class UnsureError(Exception):
    """Only an import can tell: it runs code that nobody has read."""


@dataclass(frozen=True)
class ModuleSource:
    """A module's source, parsed."""

    name: str
    path: Path
    tree: ast.Module
    is_package: bool


def find_module(name: str) -> ModuleSpec | None:
    """The spec of a dotted name where ranks will look for it; None where there is no such module.

    Raises UnsureError where a finder fails, which may be anybody's.
    """
    top, *rest = name.split(".")
    try:
        spec, full = _found(top, None), top
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return None
            full = f"{full}.{part}"
            spec = _found(full, list(spec.submodule_search_locations))
    except Exception as error:
        raise UnsureError(name) from error
    if spec is None and name in sys.modules:
        raise UnsureError(name)
    return spec


def find_below(folder: str, name: str) -> ModuleSpec | None:
    """The spec of a dotted name as far as `folder` alone holds it; None where there is no such module in it."""
    folders, spec = [folder], None
    for length in range(1, name.count(".") + 2):
        spec = _in_folders(".".join(name.split(".")[:length]), folders)
        folders = [] if spec is None else list(spec.submodule_search_locations or [])
    return spec


def read_module(name: str, spec: ModuleSpec) -> ModuleSource:
    """The module's source. Raises BrokenSourceError for one that is no Python, UnsureError where there is none."""
    if type(spec.loader) is not SourceFileLoader or spec.origin is None:
        raise UnsureError(name)
    path = Path(spec.origin)
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise UnsureError(name) from error
    except SyntaxError as error:
        raise BrokenSourceError(f"{path.name}:{error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise BrokenSourceError(f"{path.name}: {error}") from None
    return ModuleSource(name, path, tree, spec.submodule_search_locations is not None)


def modules_beside(package: str) -> list[str]:
    """The names of the source files of a package."""
    spec = find_module(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    return [path.stem for folder in folders for path in Path(folder).glob("*.py") if path.stem != "__init__"]


def _found(name: str, folders: Sequence[str] | None) -> ModuleSpec | None:
    """As an import looks, in `folders` or else where ranks look."""
    for finder in sys.meta_path:
        if finder is PathFinder:
            spec = _in_folders(name, _path_of_ranks() if folders is None else folders)
        else:
            spec = finder.find_spec(name, folders)
        if spec is not None:
            return spec
    return None


def _path_of_ranks() -> list[str]:
    """This process's import path, but the user's folder last, unless it is on the path by its own right."""
    here = os.getcwd()
    is_own = sys.flags.safe_path
    return [*(each for index, each in enumerate(sys.path) if is_own or index or each not in ("", here)), here]


def _in_folders(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """As PathFinder, which for a folder without __init__.py wants the package above it to be imported."""
    portions: list[str] = []
    for folder in folders:
        finder = pkgutil.get_importer(folder or os.getcwd())
        spec = None if finder is None else finder.find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        portions += [] if spec is None else spec.submodule_search_locations or []
    if not portions:
        return None
    found = ModuleSpec(name, None, is_package=True)
    found.submodule_search_locations = portions
    return found
