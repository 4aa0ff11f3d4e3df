"""Every layout, every quantity, every rank: not one differing bit."""

import itertools
from typing import Any

import pytest
import torch

from loss_ops.batch import GlobalBatch
from loss_ops.virtual_layout import run_layout
from support.batches import DEGREES, capture_batch, drawn, layout_differences, small, small_spec
from support.bits import count_differing, differing

LAYOUTS = list(itertools.product(DEGREES, DEGREES))
REDUCTIONS: list[dict[str, Any]] = [
    {"token_normalizer": "per_sequence_then_mean"},
    {"token_normalizer": "per_sequence_then_mean", "sequence_denominator": "all"},
    {"token_normalizer": "fixed_constant", "fixed_constant": 7.5},
    {"token_normalizer": "length_power", "alpha": 0.3},
]
OBJECTIVES: list[dict[str, Any]] = [
    {"kl_estimator": "k1", "temperature": 0.7},
    {"kl_estimator": "k2", "clip_eps_low": 0.1, "clip_eps_high": 0.28},
    {"beta": 0.0},
    {"advantage": "mean_std_sample", "std_eps_mode": "add"},
    {"advantage": "mean_only"},
]


def assert_has_power(batch: GlobalBatch) -> None:
    """Equal bits only mean something where there is something to differ."""
    outcome = run_layout(batch, 1, 1)
    live = int(batch.completion_mask.any(1).sum())
    assert int((outcome.quantities()["per_sequence_policy"] != 0).sum()) == live
    rows = batch.completion_mask.sum()
    assert int((outcome.gradient != 0).any(-1).sum()) > rows / 2


@pytest.mark.parametrize("name", ["seed", "ragged", "long-1024", "long-4096"])
def test_built_in_batches(name: str) -> None:
    batch = drawn(name)
    assert_has_power(batch)
    assert layout_differences(batch, LAYOUTS) == {}


def test_a_real_step() -> None:
    batch = capture_batch()
    assert_has_power(batch)
    fitting = [layout for layout in LAYOUTS if layout[1] <= batch.contract.geometry.num_sequences]
    assert len(fitting) == 20
    assert layout_differences(batch, fitting) == {}


@pytest.mark.parametrize(
    "fields", [*REDUCTIONS, *OBJECTIVES], ids=lambda fields: " ".join(map(str, fields.values()))
)
def test_contracts(fields: dict[str, Any]) -> None:
    batch = small(seed=1, **fields)
    assert layout_differences(batch, [(2, 2), (3, 3), (12, 6), (5, 4)]) == {}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(dtype: str) -> None:
    batch = small(seed=2, dtype=dtype)
    assert batch.policy_logits.dtype == getattr(torch, dtype)
    assert layout_differences(batch, [(2, 2), (3, 3), (12, 6)]) == {}


@pytest.mark.parametrize("length", [1, 96, 512, 1023, 4096])
def test_padded_lengths(length: int) -> None:
    spec = small_spec(padded_seq_len=length, raggedness="staggered")
    assert layout_differences(drawn(spec, 3), [(2, 2), (3, 3), (4, 6)]) == {}


@pytest.mark.parametrize("bounds", [((0, 1), (1, 4), (4, 8)), ((0, 6), (6, 7), (7, 8))])
def test_uneven_bounds(bounds: tuple[tuple[int, int], ...]) -> None:
    batch = drawn("seed", 4)
    assert layout_differences(batch, [(1, 3), (3, 3)], sequence_bounds=bounds) == {}


def test_a_rank_without_an_active_token_is_legal() -> None:
    batch = small(seed=0)
    empty = int((~batch.completion_mask.any(1)).nonzero()[0])
    outcome = run_layout(batch, 1, 6)
    assert outcome.results[0, empty].per_sequence_active_tokens[empty] == 0
    assert layout_differences(batch, [(1, 6)]) == {}


@pytest.mark.parametrize(("batch", "tp"), [("wide", 19), ("seed", 32)])
def test_one_tile_a_rank(batch: str, tp: int) -> None:
    assert layout_differences(drawn(batch), [(tp, 1)]) == {}


def test_longer_padding_changes_no_bit() -> None:
    """The same sequences in more slots: another contract, the same numbers."""
    batch = small(seed=5)
    expected = run_layout(batch, 1, 1).quantities()
    gradient = expected.pop("grad_policy_logits")
    for more in (1, 5, 8, 56):
        longer = padded(batch, more)
        for layout in ((1, 1), (3, 2)):
            got = run_layout(longer, *layout).quantities()
            wide = got.pop("grad_policy_logits")
            assert differing(expected, got) == {}
            assert count_differing(gradient, wide[:, :8]) == 0
            assert count_differing(torch.zeros_like(wide[:, 8:]), wide[:, 8:]) == 0


def padded(batch: GlobalBatch, more: int) -> GlobalBatch:
    """The batch with `more` masked slots at the end of each sequence, full of garbage."""
    assert batch.ref_logits is not None
    spec = small_spec(padded_seq_len=batch.contract.geometry.padded_seq_len + more)
    sequences, _, columns = batch.policy_logits.shape

    def grown(held: torch.Tensor, filling: float) -> torch.Tensor:
        return torch.cat((held, torch.full((sequences, more, *held.shape[2:]), filling, dtype=held.dtype)), 1)

    assert columns == spec.padded_vocab_size
    return GlobalBatch(
        grown(batch.policy_logits, torch.nan),
        grown(batch.ref_logits, torch.inf),
        grown(batch.action_ids, -7),
        grown(batch.old_logps, torch.nan),
        batch.rewards,
        grown(batch.completion_mask, 0),
        drawn(spec, 0).contract,
    )


def test_runs_repeat() -> None:
    batch = drawn("ragged", 6)
    first, second = (run_layout(batch, 2, 2) for _ in range(2))
    assert all(differing(first.quantities(p), second.quantities(p)) == {} for p in first.results)


def test_threads_do_not_matter() -> None:
    batch = drawn("long-4096", 7)
    one = run_layout(batch, 1, 1).quantities()
    torch.set_num_threads(2)
    two = run_layout(batch, 1, 1).quantities()
    torch.set_num_threads(1)
    assert differing(one, two) == {}


def test_another_batch_is_seen() -> None:
    """The comparison can fail, in every floating quantity and on every rank."""
    baseline = run_layout(drawn("seed", 0), 1, 1)
    found = layout_differences(drawn("seed", 1), [(2, 2)], baseline)
    assert len(found) == 4
    exact = {"per_sequence_active_tokens"}
    assert all(counts.keys() | exact == baseline.quantities().keys() for counts in found.values())
