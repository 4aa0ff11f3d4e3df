"""Tile statistics, their merge, and log-probabilities against float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_contract import LogprobContract, ShardingSpec, default_num_vocab_tiles, even_bounds
from loss_ops import tile_stats
from loss_ops.logprob import Logprobs, merge, owner_rank, pack, unpack
from loss_ops.tile_stats import TileStats
from loss_ops.vocab_shard import VocabShard
from oracle.grpo import OracleSettings, selected_logps
from support.bits import count_differing

VOCABULARIES = [(1, 1), (3, 4), (128, 129), (129, 129), (1000, 1024), (50257, 50257)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def vocabulary(real: int, padded: int, tiles: int | None = None) -> LogprobContract:
    tiles = tiles or default_num_vocab_tiles(padded)
    return LogprobContract(real_vocab_size=real, padded_vocab_size=padded, num_vocab_tiles=tiles)


def shards(contract: LogprobContract, tp: int) -> list[VocabShard]:
    """Whole tiles, as even as they go."""
    tiles = contract.tile_bounds
    bounds = tuple((tiles[a][0], tiles[b - 1][1]) for a, b in even_bounds(len(tiles), tp))
    fields: dict[str, Any] = {"vocab_shard_bounds": bounds, "sequence_shard_bounds": ((0, 1),), "tp_degree": tp}
    return [VocabShard.of(contract, ShardingSpec(tp_rank=rank, **fields)) for rank in range(tp)]


def stats_of(
    logits: Tensor, ids: Tensor, active: Tensor, shard: VocabShard, temperature: float = 1.0
) -> TileStats:
    part = logits[:, shard.start : shard.stop]
    return tile_stats.tile_stats(part, ids, active, shard, temperature)


def logprobs(
    logits: Tensor, ids: Tensor, contract: LogprobContract, tp: int = 1, temperature: float = 1.0
) -> Logprobs:
    """All stages, with tp ranks."""
    active = torch.ones_like(ids, dtype=torch.bool)
    parts = shards(contract, tp)
    gathered = [pack(stats_of(logits, ids, active, shard, temperature)) for shard in parts]
    return merge(*unpack(gathered, parts[0], 0), ids, parts[0])


def drawn(rows: int, columns: int, real: int, dtype: torch.dtype = torch.float32, scale: float = 3.0) -> Any:
    draw = torch.Generator().manual_seed(columns)
    logits = (scale * torch.randn(rows, columns, generator=draw)).to(dtype)
    return logits, torch.randint(0, real, (rows,), generator=draw)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("real", "padded"), VOCABULARIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_float64(
    real: int, padded: int, dtype: torch.dtype, temperature: float
) -> None:
    logits, ids = drawn(24, padded, real, dtype)
    expected, probabilities = selected_logps(
        logits.float().numpy(),
        ids.numpy(),
        OracleSettings(group_boundaries=(0, 1), temperature=temperature, real_vocab_size=real),
    )
    got = logprobs(logits, ids, vocabulary(real, padded), temperature=temperature)
    error = np.abs(got.logp_N.double().numpy() - expected)
    assert (error <= 2e-6 * np.maximum(1, np.abs(expected))).all(), error.max()
    scaled = logits.float()[:, :real] / temperature
    softmax = ((scaled - got.max_N[:, None]) - got.log_sum_N[:, None]).exp()
    np.testing.assert_allclose(softmax.numpy(), probabilities, rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize(("real", "padded"), VOCABULARIES[1:])
def test_every_tp_degree_gives_the_same_bits(real: int, padded: int) -> None:
    logits, ids = drawn(9, padded, real)
    contract = vocabulary(real, padded)
    whole = logprobs(logits, ids, contract)
    for tp in {2, 3, min(8, contract.num_vocab_tiles)}:
        split = logprobs(logits, ids, contract, tp)
        for name, value in vars(whole).items():
            assert count_differing(value, getattr(split, name)) == 0, (tp, name)


def test_other_tiles_are_another_identity() -> None:
    """The tiles fix the bits; if they did not, equal bits at every degree would prove nothing."""
    logits, ids = drawn(64, 1024, 1000)
    wide, narrow = (logprobs(logits, ids, vocabulary(1000, 1024, tiles)) for tiles in (16, 4))
    assert count_differing(wide.log_sum_N, narrow.log_sum_N) > 0


def test_a_last_short_tile() -> None:
    contract = vocabulary(100, 100, 7)
    assert contract.tile_bounds[-1] == (96, 100)
    logits, ids = drawn(5, 100, 100)
    stats = stats_of(logits, ids, torch.ones(5, dtype=torch.bool), shards(contract, 1)[0])
    assert stats.max_KN.shape == stats.sum_KN.shape == (7, 5)
    for tile, (start, stop) in enumerate(contract.tile_bounds):
        part = logits[:, start:stop].double()
        assert (stats.max_KN[tile] == part.amax(1)).all()
        exact = (part - part.amax(1, keepdim=True)).exp().sum(1)
        torch.testing.assert_close(stats.sum_KN[tile].double(), exact, rtol=1e-6, atol=0)
    # One at a time, a rank that owns nothing but the short tile sees what the whole saw.
    (*_, last) = shards(contract, 7)
    alone = stats_of(logits, ids, torch.ones(5, dtype=torch.bool), last)
    assert count_differing(alone.sum_KN[0], stats.sum_KN[6]) == 0


def test_padding_columns_may_hold_anything() -> None:
    contract = vocabulary(21, 32, 8)
    logits, ids = drawn(6, 32, 21)
    clean = logprobs(logits, ids, contract, 4)
    for garbage in (math.nan, math.inf, -math.inf, 1e38):
        dirty = logits.clone()
        dirty[:, 21:] = garbage
        again = logprobs(dirty, ids, contract, 4)
        assert all(count_differing(value, getattr(again, name)) == 0 for name, value in vars(clean).items())


def test_a_tile_of_padding_adds_nothing() -> None:
    shard = shards(vocabulary(5, 16, 4), 4)[2]
    stats = stats_of(torch.full((2, 16), 7.0), torch.tensor([0, 4]), torch.ones(2, dtype=torch.bool), shard)
    assert stats.max_KN.tolist() == [[-math.inf, -math.inf]]
    assert stats.sum_KN.tolist() == [[0.0, 0.0]]
    assert stats.selected_N.tolist() == [0.0, 0.0]


def test_columns_of_minus_infinity_have_no_probability() -> None:
    logits, ids = drawn(4, 32, 32)
    logits[:, 8:24] = -math.inf  # whole tiles, and the taken token elsewhere
    ids = torch.tensor([0, 7, 24, 31])
    got = logprobs(logits, ids, vocabulary(32, 32, 8), 4)
    live = torch.cat((logits[:, :8], logits[:, 24:]), 1).double()
    exact = logits.double().gather(1, ids[:, None])[:, 0] - live.logsumexp(1)
    torch.testing.assert_close(got.logp_N.double(), exact, rtol=0, atol=2e-6)
    taken = logprobs(logits, torch.tensor([9, 9, 9, 9]), vocabulary(32, 32, 8), 4)
    assert taken.logp_N.tolist() == [-math.inf] * 4


def test_a_certain_token_has_log_probability_zero() -> None:
    logits = torch.full((2, 32), -1e4)
    logits[:, 3] = 1e4
    assert logprobs(logits, torch.tensor([3, 3]), vocabulary(32, 32, 8)).logp_N.tolist() == [0.0, 0.0]


def test_masked_rows_are_read_as_zeros() -> None:
    logits, ids = drawn(3, 16, 16)
    active = torch.tensor([True, False, True])
    shard = shards(vocabulary(16, 16, 4), 1)[0]
    clean = stats_of(logits, ids, active, shard)
    logits[1], ids[1] = math.nan, -100
    dirty = stats_of(logits, ids, active, shard)
    assert all(count_differing(value, getattr(dirty, name)) == 0 for name, value in vars(clean).items())
    assert (clean.max_KN[:, 1] == 0).all()
    assert (clean.sum_KN[:, 1] == 4).all()
    assert dirty.selected_N[1] == 0


def test_chunks_of_rows_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, ids = drawn(37, 256, 250)
    contract = vocabulary(250, 256)
    whole = logprobs(logits, ids, contract)
    monkeypatch.setitem(tile_stats.CHUNK_ELEMENTS, "cpu", 3 * 256)
    assert len(list(tile_stats.row_chunks(logits))) == 13
    chunked = logprobs(logits, ids, contract)
    assert all(count_differing(value, getattr(chunked, name)) == 0 for name, value in vars(whole).items())


def test_the_owner_of_an_id() -> None:
    shard = shards(vocabulary(30, 32, 8), 3)[0]
    assert shard.bounds == ((0, 12), (12, 24), (24, 32))
    ids = torch.tensor([-100, 0, 11, 12, 23, 24, 29, 31, 2**63 - 1])
    assert owner_rank(ids, shard).tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
