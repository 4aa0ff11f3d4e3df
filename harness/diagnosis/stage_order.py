"""The stages of a loss in their order, what each takes in, and the first that goes wrong. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

STAGE_PREFIX = "token_"
"""Stages are compared as quantities of their own: token_logp, token_ratio, token_kl, token_policy, [S, T]."""

INPUTS: dict[str, tuple[str, ...]] = {
    "per_sequence_active_tokens": (),
    "advantages": (),
    "token_logp": (),
    "token_ratio": ("token_logp",),
    "token_kl": ("token_logp",),
    "token_policy": ("token_ratio", "advantages"),
    "clip_counts": ("token_ratio", "advantages"),
    "per_sequence_policy": ("token_policy",),
    "per_sequence_kl": ("token_kl",),
    "policy_loss": ("per_sequence_policy", "per_sequence_active_tokens"),
    "kl": ("per_sequence_kl", "per_sequence_active_tokens"),
    "loss": ("policy_loss", "kl"),
    "grad_policy_logits": ("token_logp", "token_ratio", "token_kl", "advantages", "per_sequence_active_tokens"),
}
"""Every stage with its inputs; the order of the keys is the order of the stages."""

NAMES = {
    "per_sequence_active_tokens": "active tokens",
    "advantages": "advantages",
    "token_logp": "logp",
    "token_ratio": "ratio",
    "token_kl": "kl per token",
    "token_policy": "token terms",
    "clip_counts": "clip counts",
    "per_sequence_policy": "per-sequence policy",
    "per_sequence_kl": "per-sequence kl",
    "policy_loss": "policy loss",
    "kl": "kl",
    "loss": "loss",
    "grad_policy_logits": "gradient",
}
"""The stages as a reader knows them."""


@dataclass(frozen=True)
class FirstStage:
    """The first stage that goes wrong; `inputs` were compared and agree, `unseen` were not compared."""

    name: str
    inputs: tuple[str, ...]
    unseen: tuple[str, ...]


def in_order(names: Collection[str]) -> list[str]:
    """Names of quantities in the order of their stages; unknown ones, and repeated runs, last."""
    order = list(INPUTS)
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))


def first_stage(drifted: Mapping[str, bool]) -> FirstStage | None:
    """The first stage whose output differs and of whose compared inputs none does.

    `drifted` says of every compared quantity whether it drifted. An input that was not compared is looked
    through: its own inputs count in its place.
    """
    for name in in_order([name for name, differs in drifted.items() if differs]):
        if name not in INPUTS:
            continue
        known, unseen = _inputs_of(name, drifted)
        if not any(drifted[each] for each in known):
            return FirstStage(NAMES[name], tuple(NAMES[e] for e in known), tuple(NAMES[e] for e in unseen))
    return None


def _inputs_of(name: str, drifted: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    known: dict[str, None] = {}
    unseen: dict[str, None] = {}
    for each in INPUTS[name]:
        if each in drifted:
            known[each] = None
            continue
        unseen[each] = None
        deeper = _inputs_of(each, drifted)
        known |= dict.fromkeys(deeper[0])
        unseen |= dict.fromkeys(deeper[1])
    return list(known), list(unseen)
