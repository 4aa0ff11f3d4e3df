"""What a setting is called: on the command line, in the environment and in a contract."""

from __future__ import annotations

PREFIX = "GRPO_VERIFY_"
SPELLINGS = {"json": ("format", "json"), "no_controls": ("controls", "off")}
"""Flags that are another spelling of a setting's value."""
CONTRACT_NAMES = {
    "normalizer": "token_normalizer",
    "fixed_constant": "fixed_constant",
    "alpha": "alpha",
    "sequence_denominator": "sequence_denominator",
    "beta": "beta",
    "clip_eps_low": "clip_eps_low",
    "clip_eps_high": "clip_eps_high",
    "kl": "kl_estimator",
    "temperature": "temperature",
    "advantage": "advantage",
    "std_eps": "std_eps",
    "std_eps_mode": "std_eps_mode",
}
"""Settings that are fields of a loss contract, with their names there."""


def flag_name(name: str) -> str:
    """The flag of a setting."""
    return f"--{name.replace('_', '-')}"


def variable_name(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()
