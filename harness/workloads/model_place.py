"""Where a language model is to be loaded from: a folder, a GGUF file, or a hub name. Never imports torch."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grpo_contract import InputError, Problem

INSTALL = "pip install 'grpo-verify[training]'"


def check_model(name: str) -> None:
    """Raise InputError for what can be known before anything is launched: packages and paths."""
    check_installed(name)
    place_of(name)


def check_installed(name: str) -> None:
    """Raise InputError when a package that `name` needs is not installed."""
    needed = ["transformers", *(["gguf"] if name.endswith(".gguf") else [])]
    missing = [each for each in needed if find_spec(each) is None]
    if missing:
        raise refused(f"{' and '.join(missing)}, installed ({INSTALL})", "not installed")


def place_of(name: str) -> tuple[str, dict[str, Any]]:
    """The folder or hub name to load from, and options for transformers. Raises InputError for a wrong path."""
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path), {}
    if path.is_file():
        if path.suffix != ".gguf":
            raise refused("a folder, or a file that ends in .gguf", str(path))
        return str(path.parent), {"gguf_file": path.name}
    if _is_path(name):
        raise refused("a folder, a GGUF file or a hub name", f"{name}, which does not exist")
    return name, {}


def _is_path(name: str) -> bool:
    """Whether `name` can only be a path: hub names are `model` or `owner/model`."""
    return name.endswith(".gguf") or name.startswith((".", "~", os.sep)) or name.count("/") > 1


def refused(expected: str, got: str) -> InputError:
    """The refusal of a model."""
    return InputError(Problem("input.model", "--model", expected, got))
