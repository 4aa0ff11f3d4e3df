"""Partitions: of items over ranks, and of columns over tiles."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_contract import LogprobContract, default_num_vocab_tiles, even_bounds, owner_of
from grpo_contract.logprob import WIDEST_DEFAULT_TILE

COLUMNS = st.integers(1, 200_000)


def check_partition(bounds: tuple[tuple[int, int], ...], count: int) -> None:
    """Contiguous, in order, none empty, from 0 to count."""
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == count
    assert all(start < stop for start, stop in bounds)


@given(degree=st.integers(1, 64), more=st.integers(0, 5000))
def test_even_bounds_partition_with_sizes_one_apart(degree: int, more: int) -> None:
    bounds = even_bounds(degree + more, degree)
    check_partition(bounds, degree + more)
    sizes = [stop - start for start, stop in bounds]
    assert len(sizes) == degree
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@given(degree=st.integers(1, 16), more=st.integers(0, 40), data=st.data())
def test_every_index_has_one_owner(degree: int, more: int, data: st.DataObject) -> None:
    bounds = even_bounds(degree + more, degree)
    index = data.draw(st.integers(0, degree + more - 1))
    owner = owner_of(index, bounds)
    assert [rank for rank, (start, stop) in enumerate(bounds) if start <= index < stop] == [owner]


@pytest.mark.parametrize("index", [-1, 8])
def test_an_index_outside_has_no_owner(index: int) -> None:
    with pytest.raises(IndexError, match=rf"index {index} lies in none of the shards \(\(0, 3\), \(3, 8\)\)"):
        owner_of(index, [(0, 3), (3, 8)])


@given(columns=COLUMNS)
@example(1)
@example(129)
@example(50257)
@example(151936)
@example(200_000)
def test_the_default_tiles_fit_any_vocabulary(columns: int) -> None:
    tiles = default_num_vocab_tiles(columns)
    logprob = LogprobContract(real_vocab_size=columns, padded_vocab_size=columns, num_vocab_tiles=tiles)
    check_partition(logprob.tile_bounds, columns)
    assert len(logprob.tile_bounds) == tiles >= min(16, columns)
    assert logprob.tile_width <= WIDEST_DEFAULT_TILE
    assert logprob.tile_width.bit_count() == 1


@given(columns=COLUMNS, data=st.data())
def test_accepted_tiles_are_never_empty(columns: int, data: st.DataObject) -> None:
    tiles = data.draw(st.integers(1, min(columns, 300)))
    fields = {"real_vocab_size": columns, "padded_vocab_size": columns, "num_vocab_tiles": tiles}
    problems = LogprobContract.problems(fields)
    if not problems:
        bounds = LogprobContract(**fields).tile_bounds
        check_partition(bounds, columns)
        assert len(bounds) == tiles
        return
    suggested = int(problems[0].expected.rpartition("such as ")[2])
    assert LogprobContract.problems(fields | {"num_vocab_tiles": suggested}) == ()


@pytest.mark.parametrize(
    ("columns", "tiles", "width"),
    [(1024, 32, 32), (100, 7, 16), (100, 5, 20), (50257, 16, 3142), (152064, 19, 8192), (1, 1, 1)],
)
def test_tiles_are_powers_of_two_where_that_leaves_none_empty(columns: int, tiles: int, width: int) -> None:
    logprob = LogprobContract(real_vocab_size=columns, padded_vocab_size=columns, num_vocab_tiles=tiles)
    assert logprob.tile_width == width
