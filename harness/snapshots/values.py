"""How far apart two snapshots lie, quantity by quantity: from the kept tensors, else from the digests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from harness.comparing.digests import differing_blocks
from harness.comparing.entry import Entry, QuantityDigest
from harness.comparing.ulp import raw_bits
from harness.snapshots.store import EXPECTED

Words = tuple[str, str]


def value_changes(one: Entry, other: Entry, folders: tuple[Path, Path]) -> Iterator[tuple[str, Words, float]]:
    """(quantity, what A and B hold, weight) of every quantity that differs; the weight is the relative change."""
    kept = [_kept(folder / entry.folder) for folder, entry in zip(folders, (one, other), strict=True)]
    for name in one.differing(other):
        mine, theirs = kept[0].get(name), kept[1].get(name)
        if mine is not None and theirs is not None and mine.shape == theirs.shape:
            yield name, *_of_tensors(mine, theirs)
        else:
            yield name, *_of_digests(one.quantities.get(name), other.quantities.get(name))


def _kept(place: Path) -> dict[str, Tensor]:
    path = place / f"{EXPECTED}.safetensors"
    return load_file(path) if path.exists() else {}


def _of_tensors(one: Tensor, other: Tensor) -> tuple[Words, float]:
    mine, theirs = one.double(), other.double()
    scale = float(mine.abs().max()) or 1.0
    largest = float((theirs - mine).abs().max()) / scale
    if one.dim() == 0:
        return (repr(one.item()), f"{other.item()!r} (relative {largest:.3g})"), largest
    same = one.dtype == other.dtype
    differ = int((raw_bits(one) != raw_bits(other)).sum()) if same else one.numel()
    at = int(torch.nan_to_num((theirs - mine).abs(), torch.inf).argmax())
    before, after = one.flatten()[at].item(), other.flatten()[at].item()
    words = f"{after:.9g} at its largest change; {differ} of {one.numel()} differ (relative {largest:.3g})"
    return (f"{before:.9g}", words), largest


def _of_digests(one: QuantityDigest | None, other: QuantityDigest | None) -> tuple[Words, float]:
    if one is None or other is None:
        return ("nothing" if one is None else "there", "nothing" if other is None else "there"), 1.0
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return (f"{list(one.shape)} {one.dtype}", f"{list(other.shape)} {other.dtype}"), 1.0
    blocks = list(differing_blocks(one, other))
    total = sum(len(each.blocks) for each in one.sequences)
    sequences = len({block[0] for block in blocks})
    words = f"{len(blocks)} of {total} blocks differ, in {sequences} of {len(one.sequences)} sequences"
    return (one.digest[:12], f"{other.digest[:12]} ({words})"), len(blocks) / total
