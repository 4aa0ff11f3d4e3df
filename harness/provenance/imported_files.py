"""The user's own source files that a rank has imported: what results of a foreign op come from."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from grpo_contract import Problem
from harness.files.rundir import RunDir, read_text, write_atomic
from harness.provenance.code_version import digest_of
from harness.provenance.foreign_folders import HOME, PACKAGES

IMPORTED = "imported-files.json"
INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


def note_imported(rundir: RunDir, seen: int) -> int:
    """Add to the run's list what has been imported since `seen` modules; returns how many there are now."""
    if len(sys.modules) == seen:
        return seen
    known = recorded(rundir)
    new = {str(path): digest_of([path]) for path in own_files() if str(path) not in known}
    if new:
        write_atomic(rundir.path / IMPORTED, json.dumps({**known, **new}))
    return len(sys.modules)


def recorded(rundir: RunDir) -> dict[str, str]:
    """The digests of the files that the ranks of a run had imported, by path."""
    text = read_text(rundir.path / IMPORTED)
    return {} if text is None else dict(json.loads(text))


def changed(rundir: RunDir) -> list[Problem]:
    """The imported files of a run that are no longer what they were."""
    found = []
    for name, digest in recorded(rundir).items():
        path = Path(name)
        if not path.is_file() or digest_of([path]) != digest:
            got = "another content" if path.is_file() else "no such file"
            found.append(Problem("resume.imported", f"{name}, which the op imports", "as the run had it", got))
    return found


def own_files() -> list[Path]:
    """Source files of imported modules, without those of Python, of installed packages and of this project."""
    left_out = [Path(sysconfig.get_path(name)).resolve() for name in INSTALLED]
    left_out += [HOME / package for package in PACKAGES]
    return sorted(path for path in _sources() if not any(path.is_relative_to(folder) for folder in left_out))


def _sources() -> Iterable[Path]:
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if isinstance(name, str) and (path := Path(name).resolve()).suffix == ".py" and path.is_file():
            yield path
