"""Digests of tensors as a tree: quantity, sequence, block of elements. Located without the tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from harness.comparing.comparison import WITHOUT_SEQUENCES
from harness.comparing.entry import QuantityDigest, SequenceDigest
from harness.comparing.ulp import raw_bits

BLOCK = 1 << 16
"""Elements under one digest."""
BLOCK_CHARACTERS = 16


def digest_of(name: str, value: Tensor) -> QuantityDigest:
    """sha256 over raw bits in row order; dim 0 is the sequence where the quantity has sequences."""
    sequences = value.unbind(0) if value.dim() and name not in WITHOUT_SEQUENCES else (value,)
    found = tuple(_sequence(each) for each in sequences)
    return QuantityDigest(
        dtype=str(value.dtype).removeprefix("torch."),
        shape=tuple(value.shape),
        digest=_joined(each.digest for each in found),
        block=BLOCK,
        sequences=found,
    )


def _sequence(value: Tensor) -> SequenceDigest:
    blocks = tuple(_block(part) for part in value.reshape(-1).split(BLOCK))
    return SequenceDigest(digest=_joined(blocks), blocks=blocks)


def _block(values: Tensor) -> str:
    data = raw_bits(values).view(torch.uint8).cpu().numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:BLOCK_CHARACTERS]


def _joined(parts: Iterator[str] | tuple[str, ...]) -> str:
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def differing_blocks(expected: QuantityDigest, got: QuantityDigest) -> Iterator[tuple[int, int, str, str]]:
    """(sequence, block, expected digest, obtained digest) of every block that differs, in order."""
    for s, (one, other) in enumerate(zip(expected.sequences, got.sequences, strict=True)):
        if one.digest != other.digest:
            for b, (mine, theirs) in enumerate(zip(one.blocks, other.blocks, strict=True)):
                if mine != theirs:
                    yield s, b, mine, theirs
