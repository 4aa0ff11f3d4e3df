"""The one-line builders."""

from typing import Any

import pytest

from grpo_contract import (
    AdvantageKind,
    AdvantageSpec,
    ContractError,
    GRPOLossContract,
    LossContractError,
    SequenceDenominator,
    ShardingSpec,
)

BATCH: dict[str, Any] = {"num_sequences": 8, "padded_seq_len": 4, "vocab_size": 30}


def build(**fields: Any) -> GRPOLossContract:
    return GRPOLossContract.for_batch(**BATCH | {"samples_per_prompt": 4} | fields)


def test_a_batch_in_one_line() -> None:
    contract = build(padded_vocab_size=32, dtype="bfloat16")
    assert contract.geometry.model_dump() == {
        "num_sequences": 8,
        "padded_seq_len": 4,
        "group_boundaries": (0, 4, 8),
    }
    logprob = contract.logprob
    assert (logprob.dtype, logprob.real_vocab_size, logprob.padded_vocab_size) == ("bfloat16", 30, 32)
    assert logprob.tile_bounds == tuple((start, start + 2) for start in range(0, 32, 2))
    assert contract == build(padded_vocab_size=32, dtype="bfloat16")
    assert contract.math == "device"


def test_fields_go_where_they_belong() -> None:
    contract = build(
        beta=0.5,
        advantage="mean_only",
        std_eps=0.25,
        std_eps_mode="add",
        token_normalizer="length_power",
        alpha=0.5,
        num_vocab_tiles=3,
    )
    assert contract.objective.beta == 0.5
    assert contract.objective.advantage == AdvantageSpec(kind="mean_only", std_eps=0.25, std_eps_mode="add")
    assert (contract.reduction.token_normalizer, contract.reduction.alpha) == ("length_power", 0.5)
    assert contract.logprob.num_vocab_tiles == 3


@pytest.mark.parametrize(
    "advantage",
    [
        AdvantageKind.MEAN_STD_SAMPLE,
        "mean_std_sample",
        {"kind": "mean_std_sample"},
        AdvantageSpec(kind="mean_std_sample"),
    ],
)
def test_an_advantage_in_every_form(advantage: object) -> None:
    assert build(advantage=advantage).objective.advantage == AdvantageSpec(kind="mean_std_sample")


def test_a_scope_holds_for_both_parts() -> None:
    contract = build(determinism_scope="fixed_topology")
    assert contract.reduction.determinism_scope == contract.logprob.determinism_scope == "fixed_topology"


@pytest.mark.parametrize(
    ("given", "widths"),
    [
        ({}, (0.2, 0.2)),
        ({"clip_eps": 0.3}, (0.3, 0.3)),
        ({"clip_eps": 0.3, "clip_eps_high": 0.28}, (0.3, 0.28)),
        ({"clip_eps": 0.3, "epsilon_low": 0.1}, (0.1, 0.3)),
        ({"epsilon_low": 0.1, "epsilon_high": 0.4}, (0.1, 0.4)),
    ],
)
def test_clip_widths_and_their_aliases(given: dict[str, float], widths: tuple[float, float]) -> None:
    objective = build(**given).objective
    assert (objective.clip_eps_low, objective.clip_eps_high) == widths


def test_a_width_under_two_names_is_refused() -> None:
    with pytest.raises(LossContractError, match=r"epsilon_low: expected nothing beside clip_eps_low, got 0\.1"):
        build(epsilon_low=0.1, clip_eps_low=0.1)


@pytest.mark.parametrize(
    ("groups", "got"),
    [({}, "neither"), ({"samples_per_prompt": 4, "group_boundaries": (0, 8)}, "both")],
)
def test_groups_are_given_exactly_once(groups: dict[str, Any], got: str) -> None:
    expected = "expected exactly one of group_boundaries and samples_per_prompt"
    with pytest.raises(LossContractError, match=f"group_boundaries: {expected}, got {got}"):
        GRPOLossContract.for_batch(**BATCH | groups)


@pytest.mark.parametrize("samples", [0, -2, 3, 16, 2.5, "4"])
def test_samples_that_do_not_fill_the_batch(samples: object) -> None:
    expected = "samples_per_prompt: expected a divisor of num_sequences 8, got"
    with pytest.raises(LossContractError, match=expected):
        build(samples_per_prompt=samples)


def test_wrong_groups_hide_nothing_else() -> None:
    with pytest.raises(ContractError) as caught:
        build(samples_per_prompt=3, beta=-1, num_vocab_tiles=0)
    places = [problem.where for problem in caught.value.problems]
    assert places == ["samples_per_prompt", "objective.beta", "logprob.num_vocab_tiles"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("vocab_size", "many"), ("num_sequences", "x"), ("group_boundaries", 5), ("padded_seq_len", None)],
)
def test_wrong_types_are_contract_errors(field: str, value: object) -> None:
    fields = BATCH | {"group_boundaries": (0, 8)} | {field: value}
    with pytest.raises(ContractError, match=r"expected a valid (integer|tuple)"):
        GRPOLossContract.for_batch(**fields)


@pytest.mark.parametrize("fields", [{"num_vocab_tiles": 0}, {"vocab_size": 0}, {"padded_vocab_size": 8}])
def test_numbers_out_of_range_are_not_replaced_by_defaults(fields: dict[str, int]) -> None:
    with pytest.raises(ContractError, match="expected at least"):
        build(**fields)


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(LossContractError, match=r"objective\.gamma: expected no such field, got 1"):
        build(gamma=1)


def test_the_default_denominator_is_written_out() -> None:
    assert build(token_normalizer="per_sequence_then_mean").reduction.sequence_denominator == "live"
    assert build().reduction.sequence_denominator is None
    chosen = build(token_normalizer="per_sequence_then_mean", sequence_denominator=SequenceDenominator.ALL)
    assert chosen.reduction.counts_all_sequences


# Shardings


@pytest.mark.parametrize(
    ("degree", "sequences"),
    [(1, ((0, 8),)), (3, ((0, 3), (3, 6), (6, 8))), (5, ((0, 2), (2, 4), (4, 6), (6, 7), (7, 8)))],
)
def test_whole_sequences_as_even_as_they_go(degree: int, sequences: tuple[tuple[int, int], ...]) -> None:
    for rank in range(degree):
        sharding = ShardingSpec.even(1, degree, rank=rank, contract=build())
        assert sharding.sequence_shard_bounds == sequences
        assert sharding.sequence_shard == sequences[rank]
        assert sharding.num_local_sequences == sequences[rank][1] - sequences[rank][0]


def test_whole_tiles_as_even_as_they_go() -> None:
    contract = build(vocab_size=100, num_vocab_tiles=7)
    assert contract.logprob.tile_width == 16
    sharding = ShardingSpec.even(3, 1, rank=2, contract=contract)
    assert sharding.vocab_shard_bounds == ((0, 48), (48, 80), (80, 100))
    assert (sharding.vocab_shard, sharding.num_local_columns) == ((80, 100), 20)


def test_ranks_go_along_tp_first() -> None:
    places = [ShardingSpec.even(2, 3, rank=rank, contract=build()) for rank in range(6)]
    assert [(each.dp_rank, each.tp_rank) for each in places] == [(d, t) for d in range(3) for t in range(2)]


@pytest.mark.parametrize("tp", [1, 3, 5, 7])
@pytest.mark.parametrize("dp", [1, 3, 5, 7])
def test_odd_degrees_fit(tp: int, dp: int) -> None:
    contract = build()
    for rank in range(tp * dp):
        contract.check_sharding(ShardingSpec.even(tp, dp, rank=rank, contract=contract))
