"""What identifies a run on a node: its plan, the code, the op and the captures, as a few short texts by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from grpo_contract import Problem
from harness.files.rundir import read_text
from harness.provenance.identity import IDENTITY, Identity

NOT_COMPARED = {"timeout", "notes", "asked"}
"""Fields of a plan that decide no result: remarks, and the settings behind it among them."""
_LONGEST = 60


def identity_fields(identity: Identity) -> dict[str, str]:
    """Every field of a run by name. What is long, such as the cases, as its digest."""
    plan = identity.plan.model_dump(mode="json", exclude=NOT_COMPARED)
    captures = {f"capture {name}": digest for name, digest in identity.captures.items()}
    sources = {"code of grpo-verify": identity.code, f"code of op {identity.plan.op}": str(identity.op_code)}
    return {**{f"plan.{name}": _text(value) for name, value in plan.items()}, **sources, **captures}


def changed_since(folder: Path, here: Identity) -> list[Problem]:
    """What is no longer as `grpo-verify plan` found it, when it wrote `folder`: code, op and captures."""
    path = folder / IDENTITY
    text = read_text(path)
    if text is None:
        return []
    try:
        prepared = Identity.model_validate_json(text)
    except ValidationError:
        return [Problem("error.identity", str(path), "the identity of a run of this version", "another file")]
    return list(_differences(prepared, here))


def brief(value: str) -> str:
    """`value` in a message; a digest tells apart by its first digits already."""
    return value if len(value) <= _LONGEST else f"{value[:16]}..."


def _differences(prepared: Identity, here: Identity) -> Iterator[Problem]:
    paths = {f"capture {name}": batch.path for name, batch in here.plan.batches.items()}
    one, other = identity_fields(prepared), identity_fields(here)
    for name in sorted(name for name in one.keys() & other.keys() if not name.startswith("plan.")):
        if one[name] != other[name] and one[name] != str(None):
            where = f"{name} ({paths[name]})" if name in paths else name
            expected = f"{brief(one[name])}, as when the run was prepared"
            yield Problem("error.identity", where, expected, brief(other[name]))


def _text(value: object) -> str:
    if not isinstance(value, list | dict):
        return str(value)
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    return f"{len(value)} with digest {digest[:16]}"
