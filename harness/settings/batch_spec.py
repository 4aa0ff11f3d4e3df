"""Built-in batches: their geometry, vocabulary and lengths; the values are drawn elsewhere, from a seed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_contract import GRPOLossContract

if TYPE_CHECKING:
    from harness.settings.run_config import RunConfig

Raggedness = Literal["staggered", "ragged", "full"]
Positive = Annotated[int, Field(ge=1)]


class BatchSpec(BaseModel):
    """The shape of a built-in batch; num_vocab_tiles None leaves the tiles to the contract's default.

    raggedness: `staggered` lengths fall evenly to about half, `ragged` ones are drawn from the seed with one
    full and one empty sequence among them, `full` ones are all padded_seq_len.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    num_sequences: Positive
    padded_seq_len: Positive
    real_vocab_size: Positive
    padded_vocab_size: Positive
    num_vocab_tiles: Positive | None
    group_boundaries: tuple[int, ...]
    raggedness: Raggedness


def _spec(
    name: str,
    slots: tuple[int, int],
    vocab: tuple[int, int],
    tiles: int | None,
    groups: tuple[int, ...],
    raggedness: Raggedness = "staggered",
) -> BatchSpec:
    return BatchSpec(
        name=name,
        num_sequences=slots[0],
        padded_seq_len=slots[1],
        real_vocab_size=vocab[0],
        padded_vocab_size=vocab[1],
        num_vocab_tiles=tiles,
        group_boundaries=groups,
        raggedness=raggedness,
    )


BUILT_IN: dict[str, BatchSpec] = {
    spec.name: spec
    for spec in (
        _spec("seed", (8, 32), (1000, 1024), 32, (0, 3, 8)),
        _spec("long-1024", (8, 1024), (29, 32), 16, (0, 3, 8)),
        _spec("long-4096", (8, 4096), (29, 32), 16, (0, 3, 8)),
        _spec("ragged", (12, 48), (250, 256), 16, (0, 2, 7, 12), "ragged"),
        _spec("small", (8, 32), (61, 64), 16, (0, 3, 8)),
        _spec("wide", (8, 8), (151936, 152064), None, (0, 3, 8)),
    )
}
"""The batches a user can ask for."""

SWEPT = "small"
"""The batch that a sweep moves when none was named: its vocabulary lets a padded length of 4096 be quick."""

FAMILIES: dict[str, tuple[str, ...]] = {"long": ("long-1024", "long-4096")}
"""Names that stand for several batches."""

CONTROL = _spec("control", (8, 32), (120, 128), 16, (0, 3, 8), "full")
"""The batch of the planted faults; every token is live, so that a changed order has the most to act on."""


def expand(name: str) -> tuple[str, ...]:
    """The built-in batches behind a name; nothing for a name that is not built in."""
    return FAMILIES.get(name) or ((name,) if name in BUILT_IN else ())


def lengths(spec: BatchSpec, seed: int) -> tuple[int, ...]:
    """Active tokens of each sequence, a prefix of its slots. Equal on every machine and version."""
    count, longest = spec.num_sequences, spec.padded_seq_len
    if spec.raggedness == "full":
        return (longest,) * count
    if spec.raggedness == "staggered":
        return tuple(max(1, longest - index * longest // (2 * count)) for index in range(count))
    return _ragged(spec, seed)


def _ragged(spec: BatchSpec, seed: int) -> tuple[int, ...]:
    count, longest = spec.num_sequences, spec.padded_seq_len
    drawn = [1 + _draw(spec, seed, f"length {index}") % longest for index in range(count)]
    full = _draw(spec, seed, "full") % count
    drawn[full] = longest
    if count > 1:
        drawn[(full + 1 + _draw(spec, seed, "empty") % (count - 1)) % count] = 0
    return tuple(drawn)


def _draw(spec: BatchSpec, seed: int, purpose: str) -> int:
    # A hash, not a random generator: its stream is the same in every release of every library.
    digest = hashlib.sha256(f"{spec.name}/{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def contract_for(spec: BatchSpec, config: RunConfig) -> GRPOLossContract:
    """The contract of a built-in batch: its shape, and the contract fields that `config` was given."""
    fields: dict[str, Any] = config.contract_fields()
    return GRPOLossContract.for_batch(
        num_sequences=spec.num_sequences,
        padded_seq_len=spec.padded_seq_len,
        vocab_size=spec.real_vocab_size,
        padded_vocab_size=spec.padded_vocab_size,
        group_boundaries=spec.group_boundaries,
        num_vocab_tiles=config.tiles or spec.num_vocab_tiles,
        dtype=config.dtype,
        **fields,
    )
