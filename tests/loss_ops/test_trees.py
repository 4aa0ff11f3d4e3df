"""Summation trees: the order is fixed by the extent, and only by the extent."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from loss_ops.trees import fold_sum, masked_fold_sum
from support.bits import bits, count_differing

FINITE = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=True)
TERMS = st.lists(FINITE, min_size=1, max_size=70)
EPS = 2.0**-24


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_hand(terms: list[float]) -> Tensor:
    """The documented order, one addition at a time: pad to a power of two, fold the upper half onto the lower."""
    held = [torch.tensor(term) for term in terms]
    size = 1 << (len(held) - 1).bit_length()
    held += [torch.tensor(0.0)] * (size - len(held))
    while len(held) > 1:
        half = len(held) // 2
        held = [held[index] + held[half + index] for index in range(half)]
    return held[0]


@given(TERMS)
def test_the_order_is_the_documented_one(terms: list[float]) -> None:
    # A lone term is not padded, so only its zero keeps a sign.
    assert count_differing(fold_sum(torch.tensor(terms), 0) + 0.0, by_hand(terms) + 0.0) == 0


@given(TERMS, st.integers(0, 60))
def test_zeros_at_the_end_change_no_bit(terms: list[float], zeros: int) -> None:
    plain = fold_sum(torch.tensor(terms), 0)
    padded = fold_sum(torch.tensor([*terms, *[0.0] * zeros]), 0)
    assert count_differing(plain + 0.0, padded + 0.0) == 0
    if plain != 0:
        assert count_differing(plain, padded) == 0


@given(TERMS)
def test_close_to_the_exact_sum(terms: list[float]) -> None:
    exact = math.fsum(torch.tensor(terms).double().tolist())
    magnitude = math.fsum(abs(term) for term in torch.tensor(terms).double().tolist())
    depth = (len(terms) - 1).bit_length()
    assert abs(fold_sum(torch.tensor(terms), 0).item() - exact) <= depth * EPS * 1.01 * magnitude


@given(st.lists(st.tuples(FINITE, st.booleans()), min_size=1, max_size=40))
def test_inactive_slots_enter_as_plus_zero(slots: list[tuple[float, bool]]) -> None:
    terms, active = torch.tensor([term for term, _ in slots]), torch.tensor([live for _, live in slots])
    zeroed = torch.tensor([term if live else 0.0 for term, live in slots])
    for garbage in (math.nan, math.inf, -math.inf, -0.0, 3.4e38):
        dirty = torch.where(active, terms, garbage)
        assert count_differing(masked_fold_sum(dirty, active, 0), fold_sum(zeroed + 0.0, 0)) == 0


@pytest.mark.parametrize("extent", [1, 2, 3, 7, 8])
def test_negative_zeros(extent: int) -> None:
    terms, live = torch.full((extent,), -0.0), torch.ones(extent, dtype=torch.bool)
    assert bits(masked_fold_sum(terms, live, 0)).item() == 0
    # Without the masked form a sum of -0.0 has the sign of its padding: this is what `+ 0.0` is there for.
    is_full = extent.bit_count() == 1
    assert math.copysign(1, fold_sum(terms, 0).item()) == (-1.0 if is_full else 1.0)
    assert math.copysign(1, fold_sum(torch.cat((terms, torch.zeros(1))), 0).item()) == 1.0


@pytest.mark.parametrize("extent", [1, 5, 32, 33, 1023, 4096])
def test_rows_do_not_depend_on_their_neighbours(extent: int) -> None:
    terms = drawn(8, extent)
    whole = fold_sum(terms, 1)
    for size in (1, 3, 4):
        parts = torch.cat([fold_sum(part, 1) for part in terms.split(size)])
        assert count_differing(whole, parts) == 0
    strided = torch.empty(extent, 8).copy_(terms.T).T
    assert count_differing(whole, fold_sum(strided, 1)) == 0
    assert count_differing(whole, fold_sum(terms.T.contiguous(), 0)) == 0


def test_threads_do_not_matter() -> None:
    terms = drawn(4, 200_003)
    one = fold_sum(terms, 1)
    torch.set_num_threads(2)
    two = fold_sum(terms, 1)
    torch.set_num_threads(1)
    assert count_differing(one, two) == 0


def test_another_grouping_is_another_sum() -> None:
    """The checks above can fail: the same terms in another tree, or in torch's own order, have other bits."""
    terms = drawn(64, 96)
    good = fold_sum(terms, 1)
    halves = fold_sum(torch.stack([fold_sum(half, 1) for half in terms.tensor_split(2, 1)]), 0)
    assert count_differing(good, halves) > 32
    assert count_differing(good, terms.sum(1)) > 32
    assert count_differing(good, fold_sum(terms[:, torch.randperm(96)], 1)) > 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_stays(dtype: torch.dtype) -> None:
    assert fold_sum(torch.ones(3, 5, dtype=dtype), 1).tolist() == [5.0, 5.0, 5.0]
    assert fold_sum(torch.ones(3, 5, dtype=dtype), 1).dtype == dtype


def test_an_empty_extent_is_zero() -> None:
    assert fold_sum(torch.empty(2, 0, 3), 1).tolist() == [[0.0] * 3] * 2
