"""Bitwise comparison: what counts as equal, how far apart the rest is, and where it is."""

import math
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.comparing import comparison
from harness.comparing.comparison import compare
from harness.comparing.ulp import MOST, NOT_A_NUMBER, ulp_distance

NAN, INF = math.nan, math.inf
# struct format and width of each float; bfloat16 is the upper half of a float32.
FORMATS = {
    torch.float32: ("<f", 32),
    torch.float16: ("<e", 16),
    torch.bfloat16: ("<f", 16),
    torch.float64: ("<d", 64),
}
BITS = {32: torch.int32, 16: torch.int16, 64: torch.int64}


def from_bits(pattern: int, dtype: torch.dtype) -> Tensor:
    """A 0-dim tensor with these bits."""
    width = FORMATS[dtype][1]
    signed = pattern - (1 << width) if pattern >> (width - 1) else pattern
    return torch.tensor([signed], dtype=BITS[width]).view(dtype)[0]


def rank_of(pattern: int, width: int) -> int:
    """The place of a float among all floats of its width, by hand: zeros at 0, the smallest positive at 1."""
    magnitude = pattern & ((1 << (width - 1)) - 1)
    return -magnitude if pattern >> (width - 1) else magnitude


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@given(data=st.data())
def test_ulp_distance_is_the_number_of_steps_between(dtype: torch.dtype, data: st.DataObject) -> None:
    width = FORMATS[dtype][1]
    one, other = (data.draw(st.integers(0, (1 << width) - 1)) for _ in range(2))
    left, right = from_bits(one, dtype), from_bits(other, dtype)
    expected = min(abs(rank_of(one, width) - rank_of(other, width)), MOST)
    if left.isnan() or right.isnan():
        expected = NOT_A_NUMBER
    assert ulp_distance(left, right).item() == ulp_distance(right, left).item() == expected


@given(value=st.floats(allow_nan=False, width=64), steps=st.integers(0, 40))
def test_steps_of_nextafter(value: float, steps: int) -> None:
    moved = value
    for _ in range(steps):
        moved = math.nextafter(moved, INF)
    taken = steps if math.isfinite(moved) else None
    distance = ulp_distance(
        torch.tensor(value, dtype=torch.float64), torch.tensor(moved, dtype=torch.float64)
    ).item()
    # -0.0 and 0.0 share a place, so a walk that starts at zero loses no step on the way.
    assert taken is None or distance == taken


@given(value=st.floats(allow_nan=False, allow_infinity=False, width=32), steps=st.integers(0, 5))
def test_steps_of_float32(value: float, steps: int) -> None:
    (pattern,) = struct.unpack("<I", struct.pack("<f", value))
    if (pattern & 0x7FFFFFFF) + steps > 0x7F800000:
        return
    moved = struct.unpack("<f", struct.pack("<I", pattern + steps))[0]
    assert ulp_distance(torch.tensor(value), torch.tensor(moved)).item() == steps


@given(one=st.integers(-(2**63), 2**63 - 1), other=st.integers(-(2**63), 2**63 - 1))
def test_integers_are_apart_by_their_difference(one: int, other: int) -> None:
    distance = ulp_distance(torch.tensor(one), torch.tensor(other)).item()
    assert distance == min(abs(one - other), MOST)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
def test_small_integers(dtype: torch.dtype) -> None:
    expected, got = torch.tensor([1, 0, 1]).to(dtype), torch.tensor([1, 1, 0]).to(dtype)
    seen = compare("clip_counts", expected, got)
    assert (seen.mismatched, seen.max_ulp, seen.first, seen.floating) == (2, 1, (1,), False)


# Equality


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_zeros_of_either_sign_differ(dtype: torch.dtype) -> None:
    seen = compare("loss", torch.tensor([0.0, 1.0], dtype=dtype), torch.tensor([-0.0, 1.0], dtype=dtype))
    assert (seen.mismatched, seen.max_ulp, seen.max_abs) == (1, 0, 0.0)
    assert int(seen.expected_bits, 16) == 0
    assert seen.got_bits == "0x8" + "0" * (FORMATS[dtype][1] // 4 - 1)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_equal_nans_agree_and_others_do_not(dtype: torch.dtype) -> None:
    nan = torch.tensor([NAN], dtype=dtype)
    assert compare("loss", nan, nan.clone()).mismatched == 0
    payload = (nan.view(BITS[FORMATS[dtype][1]]) + 1).view(dtype)
    assert payload.isnan().all()
    seen = compare("loss", nan, payload)
    assert (seen.mismatched, seen.max_ulp) == (1, NOT_A_NUMBER)
    assert math.isnan(seen.max_abs)


def test_a_number_against_nan_is_not_lost_beside_others() -> None:
    expected = torch.tensor([1.0, 2.0, 3.0])
    seen = compare("advantages", expected, torch.tensor([1.5, NAN, 3.0]))
    assert (seen.mismatched, seen.max_ulp, seen.sequences) == (2, NOT_A_NUMBER, (0, 1))
    assert math.isnan(seen.max_abs)


def test_infinities() -> None:
    expected = torch.tensor([INF, INF, 1.0])
    assert compare("advantages", expected, expected.clone()).mismatched == 0
    seen = compare("advantages", expected, torch.tensor([INF, -INF, INF]))
    assert (seen.mismatched, seen.max_abs, seen.first) == (2, INF, (1,))


def test_equal_tensors_say_what_was_compared() -> None:
    values = torch.tensor([[0.0, 1.0], [0.0, 2.0]])
    seen = compare("grad_policy_logits", values, values.clone(), sharded=True)
    assert (seen.elements, seen.nonzero, seen.mismatched, seen.first) == (4, 2, 0, None)
    assert (seen.floating, seen.by_sequence, seen.shard) == (True, True, (0, 0))


# Where


def gradient(shape: tuple[int, ...] = (3, 4, 5)) -> Tensor:
    return torch.arange(1, 1 + math.prod(shape), dtype=torch.float32).view(shape)


def nudged(values: Tensor, *places: tuple[int, ...]) -> Tensor:
    """A copy, one ULP up in these places."""
    moved = values.clone()
    for place in places:
        moved[place] = torch.nextafter(moved[place], torch.tensor(INF))
    return moved


def test_the_first_element_in_global_coordinates() -> None:
    expected = gradient()
    seen = compare(
        "grad_policy_logits", expected, nudged(expected, (1, 2, 3), (2, 0, 0)), (10, 0, 100), sharded=True
    )
    assert (seen.mismatched, seen.max_ulp) == (2, 1)
    assert seen.first == (11, 2, 103)
    assert seen.sequences == (11, 12)
    assert seen.shard == (10, 0, 100)
    assert (seen.expected, seen.got) == ("34.0", repr(nudged(expected, (1, 2, 3))[1, 2, 3].item()))
    assert (seen.expected_bits, seen.got_bits) == ("0x42080000", "0x42080001")
    assert seen.max_abs == 2.0**-18


def test_first_means_first_in_memory_order() -> None:
    expected = gradient()
    seen = compare("grad_policy_logits", expected, nudged(expected, (2, 0, 0), (0, 3, 4), (1, 0, 0)))
    assert seen.first == (0, 3, 4)
    assert seen.sequences == (0, 1, 2)


def test_a_vector_has_an_origin_too() -> None:
    expected = torch.tensor([1.0, 2.0, 3.0])
    seen = compare("per_sequence_policy", expected, nudged(expected, (1,)), (4,))
    assert (seen.first, seen.sequences) == ((5,), (5,))


def test_a_scalar_has_no_place() -> None:
    seen = compare("loss", torch.tensor(1.0), torch.tensor(1.5))
    assert (seen.elements, seen.mismatched, seen.first, seen.sequences) == (1, 1, (), ())
    assert seen.max_abs == 0.5
    assert not seen.by_sequence


def test_counts_belong_to_no_sequence() -> None:
    seen = compare("clip_counts", torch.tensor([1, 2, 3, 9]), torch.tensor([1, 5, 6, 9]))
    assert (seen.mismatched, seen.max_ulp, seen.max_abs) == (2, 3, 3.0)
    assert (seen.sequences, seen.by_sequence) == ((), False)


def test_strides_do_not_matter() -> None:
    expected = gradient((4, 3, 5))
    got = nudged(expected, (2, 1, 4))
    strided = torch.empty(5, 3, 4).permute(2, 1, 0).copy_(got)
    assert not strided.is_contiguous()
    assert compare("grad_policy_logits", expected, strided) == compare("grad_policy_logits", expected, got)
    whole = torch.zeros(4, 3, 9)
    whole[..., 2:7] = expected
    assert compare("grad_policy_logits", whole[..., 2:7], expected).mismatched == 0


@pytest.mark.parametrize("chunk", [1, 3, 5, 7, 19, 20, 21, 40, 59, 60, 1 << 20])
def test_pieces_give_the_same_answer(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = gradient()
    got = nudged(expected, (0, 3, 4), (1, 0, 0), (2, 2, 2), (2, 3, 4))
    got[1, 1, 1] = 0.0
    arguments: Any = ("grad_policy_logits", expected, got, (7, 0, 30))
    whole = compare(*arguments, sharded=True)
    assert (whole.mismatched, whole.first, whole.sequences) == (5, (7, 3, 34), (7, 8, 9))
    monkeypatch.setattr(comparison, "CHUNK", chunk)
    pieces = compare(*arguments, sharded=True)
    # The tally explains with sums of doubles, whose last digit may go with the pieces; nothing is decided by it.
    assert pieces.model_dump(exclude={"tally"}) == whole.model_dump(exclude={"tally"})


@given(
    places=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 4)), max_size=8),
    chunk=st.integers(1, 70),
)
def test_every_difference_is_found(places: list[tuple[int, int, int]], chunk: int) -> None:
    expected = gradient()
    distinct = sorted(set(places))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "CHUNK", chunk)
        seen = compare("grad_policy_logits", expected, nudged(expected, *distinct))
    assert seen.mismatched == len(distinct)
    assert seen.first == (distinct[0] if distinct else None)
    assert seen.sequences == tuple(sorted({place[0] for place in distinct}))
    assert seen.max_ulp == (1 if distinct else 0)


# Shapes


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (torch.zeros(3), "[3] float32"),
        (torch.zeros(2, 1), "[2, 1] float32"),
        (torch.zeros(2, dtype=torch.float64), "[2] float64"),
        (torch.tensor(0.0), "[] float32"),
    ],
)
def test_another_shape_or_dtype_is_a_difference(got: Tensor, words: str) -> None:
    seen = compare("advantages", torch.zeros(2), got)
    assert seen.mismatched == seen.elements >= 2
    assert (seen.max_ulp, seen.max_abs) == (NOT_A_NUMBER, INF)
    assert (seen.expected, seen.got) == ("[2] float32", words)
    assert seen.first is None


def test_a_drift_survives_text() -> None:
    for got in (torch.tensor([NAN, 2.0]), torch.tensor([INF, 2.0]), torch.zeros(3), torch.tensor([1.0, 2.0])):
        seen = compare("advantages", torch.tensor([1.0, 2.0]), got)
        again = type(seen).model_validate_json(seen.model_dump_json())
        assert again.model_dump_json() == seen.model_dump_json()
        assert again.mismatched == seen.mismatched
