"""The fields of a loss contract in the metadata of a capture: names, values, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from grpo_contract import AdvantageKind, KLEstimator, Problem, SequenceDenominator, StdEpsMode, TokenNormalizer
from harness.inputs.capture_metadata import is_finite
from harness.settings.config_problems import suggestion

_NUMBERS = ("beta", "temperature", "clip_eps_low", "clip_eps_high", "fixed_constant", "alpha", "std_eps")
_WORDS: dict[str, type[StrEnum]] = {
    "kl_estimator": KLEstimator,
    "token_normalizer": TokenNormalizer,
    "sequence_denominator": SequenceDenominator,
    "advantage": AdvantageKind,
    "std_eps_mode": StdEpsMode,
}
_KNOWN = ("real_vocab_size", "clip_eps", *_NUMBERS, *_WORDS)
"""Metadata that says what the contract is; any other is free text."""
_JUDGED = ("beta", "temperature", "kl_estimator")
"""Those that the header check judges."""
_MISTAKEN = (
    "determinism_scope", "epsilon", "epsilon_high", "epsilon_low", "kl", "kl_beta", "kl_coef", "normalizer",
    "num_vocab_tiles", "vocab_size",
)  # fmt: skip
"""Names a contract or another trainer has, and a capture has not: kept as free text they would say nothing."""


def stored_fields(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The contract fields that the metadata says, under the contract's names, unjudged."""
    fields: dict[str, Any] = {}
    if "clip_eps" in metadata:
        fields["clip_eps_low"] = fields["clip_eps_high"] = float(metadata["clip_eps"])
    fields |= {name: float(metadata[name]) for name in _NUMBERS if name in metadata}
    fields |= {name: metadata[name] for name in _WORDS if name in metadata}
    return fields


def field_problems(metadata: Mapping[str, str]) -> list[Problem]:
    """Values of contract fields that the header check does not know, and keys that only look like one."""
    found = []
    for name, text in metadata.items():
        if name in _JUDGED or (name not in _KNOWN and not _looks_known(name)):
            continue
        if name not in _KNOWN:
            expected = f"one of {', '.join(_KNOWN)}, or free text under another name{suggestion(name, [*_KNOWN])}"
            found.append(Problem("input.metadata", "metadata", expected, name))
        elif name in _NUMBERS and not is_finite(text):
            found.append(Problem("input.metadata", f"metadata {name}", "a finite number", str(text)))
        elif name in _WORDS and text not in (choices := [each.value for each in _WORDS[name]]):
            found.append(Problem("input.metadata", f"metadata {name}", f"one of {', '.join(choices)}", str(text)))
    return found


def _looks_known(name: str) -> bool:
    plain = name.lower().replace("-", "_")
    return plain in _MISTAKEN or bool(get_close_matches(plain, _KNOWN, n=1, cutoff=0.8))


def as_text(value: object) -> str:
    """A value as metadata spells it."""
    return str(getattr(value, "value", value))
