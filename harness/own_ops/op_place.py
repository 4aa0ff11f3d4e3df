"""Where the ranks find a foreign op, and a module of the same name in the current folder that they do not use."""

from __future__ import annotations

import os
from importlib.machinery import ModuleSpec

from harness.own_ops.module_source import UnsureError, find_below, find_module


def hidden_notes(op: str) -> tuple[str, ...]:
    """A line where the import path leads to another file than the current folder holds; nothing is imported."""
    if ":" not in op:
        return ()
    name = op.partition(":")[0]
    try:
        used, beside = _origin(find_module(name)), _origin(find_below(os.getcwd(), name))
    except (UnsureError, OSError):
        return ()
    if used is None or beside is None or os.path.realpath(used) == os.path.realpath(beside):
        return ()
    return (f"op {op} is {used}, not ./{os.path.relpath(beside)}",)


def _origin(spec: ModuleSpec | None) -> str | None:
    return None if spec is None else spec.origin
