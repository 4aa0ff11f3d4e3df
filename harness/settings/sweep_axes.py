"""What can be swept, and the text that says so. Nothing is imported: the configuration checks it."""

from __future__ import annotations

KEYS = {
    "seq_len": "padded token slots of a sequence, such as seq_len=32,4096",
    "groups": "aligned or straddle: whether groups end where even shards do",
    "raggedness": "full, staggered or ragged",
}
LONGEST = 1 << 20
"""Token slots of a sequence."""
DEFAULT = ("seq_len=32,96,512,1023,4096", "groups=straddle,aligned", "raggedness=full,ragged")
CHOICES = {"groups": ("straddle", "aligned"), "raggedness": ("full", "staggered", "ragged")}


def parse(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """`key=value,value`, or `default`, as keys with their values. Raises ValueError saying what was expected."""
    if text == "default":
        return tuple(axis for each in DEFAULT for axis in parse(each))
    key, separator, listed = text.partition("=")
    values = tuple(dict.fromkeys(value.strip() for value in listed.split(",")))
    if key not in KEYS or not separator or not all(_fits(key, value) for value in values):
        lengths = f"seq_len=N,... (N from 1 to {LONGEST})"
        raise ValueError(f"default, {lengths}, groups=straddle,aligned or raggedness=full,staggered,ragged")
    return ((key, values),)


def _fits(key: str, value: str) -> bool:
    return value in CHOICES[key] if key in CHOICES else _is_length(value)


def _is_length(value: str) -> bool:
    return value.isdecimal() and len(value) <= len(str(LONGEST)) and 0 < int(value) <= LONGEST
