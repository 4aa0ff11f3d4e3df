"""Fingerprints: sha256 of canonical JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SCHEMA_VERSION = 1


def canonical_json(content: Mapping[str, Any]) -> str:
    """Sorted keys, no spaces, shortest round-trip numbers: equal content gives equal text."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(content: Mapping[str, Any]) -> str:
    """64 hex digits over the content and the version of its schema."""
    text = canonical_json({"schema_version": SCHEMA_VERSION, "content": content})
    return hashlib.sha256(text.encode()).hexdigest()


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields under dotted names, e.g. `objective.advantage.std_eps`."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{path}."))
        else:
            flat[path] = value
    return flat
