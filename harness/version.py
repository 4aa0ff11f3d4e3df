"""The version of this project, installed or run from a checkout."""

from __future__ import annotations

import tomllib
from pathlib import Path


def version() -> str:
    """The installed version; in a checkout what its pyproject.toml says."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("grpo-verify")
    except PackageNotFoundError:
        return _checkout_version(Path(__file__).resolve().parent.parent / "pyproject.toml")


def _checkout_version(path: Path) -> str:
    try:
        return str(tomllib.loads(path.read_text(encoding="utf-8"))["project"]["version"])
    except (OSError, ValueError, KeyError):
        return "unknown"
