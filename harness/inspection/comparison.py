"""What is not the same in two reports or snapshots, ranked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_contract.fingerprint import flatten

LONE_WEIGHT = 1e6
"""Above every change of size, below every change of a verdict."""
FIXES_BITS = ("device", "device_name", "torch", "cuda", "triton", "num_threads", "float32_matmul_precision")


@dataclass(frozen=True)
class Change:
    """One thing that is not the same; `weight` ranks it, the heaviest first."""

    where: str
    before: str
    after: str
    weight: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """What changed in contract and environment, what in numbers, and in how many places numbers were compared."""

    contract: tuple[Change, ...]
    environment: tuple[Change, ...]
    numbers: tuple[Change, ...]
    compared: int
    one_sided: tuple[str, ...] = ()
    bits: int = 0
    """In how many places the numbers themselves were compared, not only each side's own layouts."""

    @property
    def other_build(self) -> bool:
        """Whether the two ran on builds or devices whose bits are not promised to agree."""
        return any(each.where.rpartition(".")[2] in FIXES_BITS for each in self.environment)

    @property
    def status(self) -> int:
        """0 the numbers agree, 1 they do not or one side has more of them, 3 nothing could be compared."""
        if not self.compared:
            return 3
        return 1 if self.numbers else 0


def lone_changes(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Change]:
    """A case that one side lacks is no agreement."""
    return [*(Change(name, "there", "nothing", LONE_WEIGHT) for name in mine if name not in theirs),
            *(Change(name, "nothing", "there", LONE_WEIGHT) for name in theirs if name not in mine)]  # fmt: skip


def one_sided(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, ...]:
    """A line for each name that one side lacks."""
    return (*(f"{name}: only in A" for name in mine if name not in theirs),
            *(f"{name}: only in B" for name in theirs if name not in mine))  # fmt: skip


def changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Change, ...]:
    """The fields, nested ones by their path, that are not the same."""
    mine, theirs = flatten(dict(one)), flatten(dict(other))
    names = sorted(mine.keys() | theirs.keys())
    return tuple(
        Change(name, _shown(mine.get(name)), _shown(theirs.get(name)))
        for name in names
        if mine.get(name) != theirs.get(name)
    )


def ranked(found: Iterable[Change]) -> tuple[Change, ...]:
    """The heaviest first."""
    return tuple(sorted(found, key=lambda change: (-change.weight, change.where)))


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
