"""A snapshot entry: digests of an op's quantities on one batch, and what they are comparable with. No torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from grpo_contract.fingerprint import fingerprint

SCHEMA_VERSION: Literal[1] = 1


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SnapshotKey(_Part):
    """All that must be equal for bits to be comparable; the rest of the environment is not looked at."""

    op: str
    numeric_fingerprint: str
    torch: str
    cuda: str | None
    triton: str | None
    device: str
    transport: str

    @property
    def environment(self) -> dict[str, str | None]:
        """The part that the machine and its builds decide."""
        return self.model_dump(exclude={"op", "numeric_fingerprint"})


class SequenceDigest(_Part):
    """One sequence: the digest of its blocks' digests, and these, each over `block` elements or the rest."""

    digest: str
    blocks: tuple[str, ...]


class QuantityDigest(_Part):
    """One quantity: the digest of its sequences' digests. A quantity without sequences counts as one."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    block: int
    sequences: tuple[SequenceDigest, ...]


class Entry(_Part):
    """What was obtained of one (op, batch, seed) at 1x1."""

    schema_version: Literal[1] = SCHEMA_VERSION
    name: str
    batch: str
    seed: int | None
    key: SnapshotKey
    contract: dict[str, Any]
    quantities: dict[str, QuantityDigest]

    @property
    def folder(self) -> str:
        """Where the entry lies below the snapshot's folder: its name, and its key in short."""
        plain = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in self.name)
        return f"{plain[:80]}-{fingerprint({**self.key.model_dump(), 'name': self.name})[:12]}"

    def differing(self, other: Entry) -> list[str]:
        """Names of the quantities whose digests differ, or that only one has."""
        names = dict.fromkeys((*self.quantities, *other.quantities))
        return [name for name in names if self.quantities.get(name) != other.quantities.get(name)]
