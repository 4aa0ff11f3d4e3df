"""The start-up check: each of this project's package names must lead to this project's folder.

Standard library only: where a name leads elsewhere, importing anything of ours may fail.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

PACKAGES = ("grpo_contract", "loss_ops", "reports", "harness")
HOME = Path(__file__).resolve().parents[2]


def foreign_folders() -> list[str]:
    """One message for every package whose name leads to a folder of somebody else; empty when all is well.

    The names are common words: a project that owns a `harness` folder hides ours when its own folder comes
    earlier on the import path, and half of each would run.
    """
    return [message for name in PACKAGES if (message := _message(name))]


def _message(name: str) -> str | None:
    folders = folders_of(name)
    foreign = [folder for folder in folders if folder != HOME / name]
    if folders and not foreign:
        return None
    got = f"{foreign[0]} (earlier on the import path; start from another folder)" if foreign else "nothing"
    return f"package {name}: expected the folder {HOME / name}, got {got}"


def folders_of(name: str) -> list[Path]:
    """Where a fresh process with this import path would look for package `name`.

    Modules that are loaded already do not count: ours may be, while a worker would find another.
    """
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, None) if find is not None else None
        if isinstance(spec, ModuleSpec):
            found = spec.submodule_search_locations or [spec.origin or ""]
            return [Path(folder).resolve() for folder in found]
    return []
