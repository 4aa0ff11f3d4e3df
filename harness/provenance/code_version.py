"""Which code a result came from: a digest over the sources of the four packages, and of a foreign op's module."""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from harness.provenance.foreign_folders import HOME, PACKAGES


def code_digest() -> str:
    """sha256 over names and bytes of every source file of this project, in order of their names."""
    files = (path for package in PACKAGES for path in (HOME / package).rglob("*.py"))
    return digest_of(sorted(files))


def op_digest(op: str) -> str | None:
    """The digest of the top package or module of `package.module:attribute`; None for an op of ours.

    Found without importing it, where the ranks will find it: on the import path, then in the user's folder.
    """
    if ":" not in op:
        return None
    top = op.partition(":")[0].partition(".")[0]
    spec = importlib.machinery.PathFinder.find_spec(top, [*sys.path, os.getcwd()])
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return digest_of(
            sorted(p for folder in spec.submodule_search_locations for p in Path(folder).rglob("*.py"))
        )
    return digest_of([Path(spec.origin)]) if spec.origin else None


def digest_of(files: Iterable[Path]) -> str:
    """sha256 over the names and the contents of `files`."""
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        whole.update(f"{path.relative_to(HOME) if path.is_relative_to(HOME) else path.name}\0".encode())
        whole.update(content)
    return whole.hexdigest()
