"""Counts of differing elements: by hand on small tensors, and the same however the work was split."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.comparing import comparison
from harness.comparing.bins import MOST, Bins, Cells, merge_bins, merge_cells
from harness.comparing.comparison import compare
from harness.comparing.frame import Frame
from harness.comparing.tally import Tally, merge
from support.batches import small

SHAPE = (6, 8, 24)


def gradient(seed: int = 0) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def steps(value: Tensor, count: int) -> Tensor:
    """The values so many representable numbers away."""
    return (value.view(torch.int32) + count).view(torch.float32)


def tally(expected: Tensor, got: Tensor, name: str = "grad_policy_logits", frame: Frame | None = None) -> Tally:
    found = compare(name, expected, got, frame=frame).tally
    assert found is not None
    return found


def test_equal_bits_have_no_tally() -> None:
    assert compare("loss", torch.ones(()), torch.ones(())).tally is None


def test_the_histogram_counts_binary_digits_of_ulps() -> None:
    expected = gradient()
    got = expected.clone()
    for place, count in enumerate((1, 2, 3, 4, 7, 8, 1 << 20)):
        got[place % 6, place, 3] = steps(expected[place % 6, place, 3], count)
    found = tally(expected, got)
    assert found.ulps == (0, 1, 2, 2, 1, *[0] * 16, 1)
    assert sum(found.ulps) == found.mismatched == 7


def test_signed_zeros_and_nans_have_places_of_their_own() -> None:
    expected, got = torch.zeros(4), torch.tensor([0.0, -0.0, math.nan, math.inf])
    found = tally(expected, got, "advantages")
    assert (found.ulps[0], found.not_numbers, found.non_finite, found.first_non_finite) == (1, 1, 2, (2,))
    assert found.mismatched == sum(found.ulps) + found.not_numbers == 3


def test_places_are_counted_on_every_axis() -> None:
    expected = gradient()
    got = expected.clone()
    got[1, 2, 5:7] += 1
    got[4, 7, 23] += 1
    found = tally(expected, got, frame=Frame(small()))
    assert found.sequence == Bins(width=1, first=0, counts=(0, 2, 0, 0, 1, 0), sizes=(192,) * 6)
    assert found.token == Bins(width=1, first=0, counts=(0, 0, 2, 0, 0, 0, 0, 1), sizes=(144,) * 8)
    assert found.tile is not None
    assert found.tile.counts == (0, 0, 1, 1, *[0] * 7, 1), "tiles of two columns"
    assert found.cells is not None
    assert (found.cells.rows[1][2], found.cells.rows[4][7]) == (2, 1)


def test_masked_slots_are_told_apart() -> None:
    batch = small()
    expected = torch.zeros(SHAPE)
    got = expected.clone()
    s, t = (~batch.completion_mask).nonzero()[0].tolist()
    got[s, t] = 1.0
    found = tally(expected, got, frame=Frame(batch))
    assert found.masked == found.mismatched == 24


def test_the_gross_part_leaves_roundings_out() -> None:
    expected = gradient()
    got = steps(expected, 1)
    got[2, 3, 4] = expected[2, 3, 4] + 1
    found = tally(expected, got)
    assert found.mismatched == expected.numel()
    assert found.gross is not None
    assert found.gross.mismatched == 1
    assert found.gross.sequence is not None
    assert found.gross.sequence.counts == (0, 0, 1, 0, 0, 0)


@pytest.mark.parametrize("axis", [0, 2])
def test_shards_merge_to_the_whole(axis: int) -> None:
    batch = small()
    expected, got = gradient(), gradient()
    got[torch.rand(SHAPE, generator=torch.Generator().manual_seed(1)) < 0.2] *= 1.5
    frame = Frame(batch)
    whole = compare("grad_policy_logits", expected, got, (0, 0, 0), sharded=True, frame=frame).tally
    half = SHAPE[axis] // 2
    parts = []
    for start in (0, half):
        origin = tuple(start if dim == axis else 0 for dim in range(3))
        pair = (each.narrow(axis, start, half) for each in (expected, got))
        part = compare("grad_policy_logits", *pair, origin, sharded=True, frame=frame).tally
        parts.append(Tally.model_validate_json(part.model_dump_json()))
    # How rows grew is a rank's own view of its columns, and scales are those of a shard.
    own = {"rows_up", "rows_down", "relative", "gross", "factor", "offset"}
    merged = merge(parts)
    assert merged.model_dump(exclude=own) == whole.model_dump(exclude=own)
    assert merged.factor.mean == pytest.approx(whole.factor.mean)


@settings(max_examples=10, deadline=None)
@given(chunk=st.integers(17, 1200))
def test_chunks_count_alike(chunk: int) -> None:
    expected, got = gradient(), gradient()
    got[::2, 1::3] *= 2
    whole = tally(expected, got)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "CHUNK", chunk)
        pieces = tally(expected, got)
    own = {"relative", "gross", "factor", "offset"}
    assert pieces.model_dump(exclude=own) == whole.model_dump(exclude=own)


def test_bins_stay_few_and_lose_nothing() -> None:
    long = torch.zeros(5000, 3, 2)
    got = long.clone()
    got[[0, 777, 4999], 1, 1] = 1.0
    found = tally(long, got, "grad_policy_logits")
    assert found.sequence is not None
    assert len(found.sequence.counts) <= MOST
    assert (sum(found.sequence.counts), sum(found.sequence.sizes)) == (3, 30000)
    assert found.cells is not None
    assert sum(map(sum, found.cells.rows)) == 3


@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from([1, 2, 8]), st.integers(0, 90), st.lists(st.integers(0, 9), min_size=1, max_size=64)
        ),
        min_size=1,
        max_size=5,
    )
)
def test_merged_bins_keep_the_sum_and_the_bound(parts: list[tuple[int, int, list[int]]]) -> None:
    bins = [Bins(width=w, first=f, counts=tuple(c), sizes=(10,) * len(c)) for w, f, c in parts]
    merged = merge_bins(bins)
    assert sum(merged.counts) == sum(sum(part.counts) for part in bins)
    assert sum(merged.sizes) == sum(sum(part.sizes) for part in bins)
    assert len(merged.counts) <= MOST
    cells = [Cells(sequence_width=w, token_width=1, first=f, rows=tuple((n, 0) for n in c)) for w, f, c in parts]
    joined = merge_cells(cells)
    assert sum(map(sum, joined.rows)) == sum(merged.counts)
    assert len(joined.rows) <= MOST


class LargestNew(TorchDispatchMode):
    """Notes the size of the largest storage that any operation makes anew."""

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        self.known = {each.untyped_storage().data_ptr() for each in given}
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, Tensor) and each.untyped_storage().data_ptr() not in self.known:
                self.bytes = max(self.bytes, each.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("drift", ["none", "one element", "every element"])
def test_nothing_of_the_tensors_own_size_is_made(drift: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randn(16, 16, 256)
    expected, got = whole[4:, :, 64:], whole[4:, :, 64:].clone()
    if drift == "one element":
        got[11, 15, 7] += 1
    elif drift == "every element":
        got.mul_(2)
    chunk = 768
    monkeypatch.setattr(comparison, "CHUNK", chunk)
    with LargestNew(whole, got) as seen:
        found = compare("grad_policy_logits", expected, got, (4, 0, 64), sharded=True)
    assert found.mismatched == {"none": 0, "one element": 1, "every element": got.numel()}[drift]
    slots = 12 * 16
    assert seen.bytes <= 8 * max(chunk, slots) < got.untyped_storage().nbytes() / 20
