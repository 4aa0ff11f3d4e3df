"""The metadata of a capture as far as its header can judge it: groups, vocabulary, some fields of the contract."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise

from grpo_contract import KLEstimator, Problem


def metadata_problems(metadata: Mapping[str, str], shape: tuple[int, ...] | None) -> list[Problem]:
    """What is wrong with the metadata of logits of this shape [B, T, V]; None where they have no such shape."""
    found = _boundary_problems(metadata, shape[0] if shape else None)
    columns = shape[2] if shape else None
    size = metadata.get("real_vocab_size")
    if size is not None and not _is_count(str(size), columns):
        expected = f"an integer from 1 to {columns or 'the number of columns'}"
        found.append(Problem("input.metadata", "metadata real_vocab_size", expected, str(size)))
    for name in ("beta", "clip_eps", "temperature"):
        text = metadata.get(name)
        if text is not None and not is_finite(text):
            found.append(Problem("input.metadata", f"metadata {name}", "a finite number", str(text)))
    kl, known = metadata.get("kl_estimator"), [each.value for each in KLEstimator]
    if kl is not None and kl not in known:
        expected = f"one of {', '.join(known)}"
        found.append(Problem("input.metadata", "metadata kl_estimator", expected, str(kl)))
    return found


def _boundary_problems(metadata: Mapping[str, str], num_sequences: int | None) -> list[Problem]:
    text = metadata.get("group_boundaries")
    try:
        edges = json.loads(text or "null")
    except (ValueError, TypeError, RecursionError):
        edges = None
    if isinstance(edges, list) and edges and all(type(edge) is int for edge in edges):
        rises = all(low < high for low, high in pairwise(edges))
        if len(edges) > 1 and edges[0] == 0 and rises and num_sequences in (None, edges[-1]):
            return []
    expected = f"a JSON list of offsets that rise from 0 to {num_sequences or 'the number of sequences'}"
    got = "nothing" if text is None else str(text)[:80]
    return [Problem("input.groups", "metadata group_boundaries", expected, got)]


def _is_count(text: str, most: int | None) -> bool:
    return text.isdecimal() and len(text) < 19 and 1 <= int(text) <= (most or int(text))


def is_finite(text: object) -> bool:
    """Whether a text is a finite number."""
    try:
        return math.isfinite(float(str(text)))
    except ValueError:
        return False
