"""Everything that must be refused, with the words it is refused in."""

from collections.abc import Callable
from typing import Any

import pytest

from grpo_contract import (
    ContractError,
    GRPOLossContract,
    LogprobContract,
    LogprobContractError,
    LossContractError,
    ObjectiveSpec,
    Problem,
    ReductionSpec,
    ShardingError,
    ShardingSpec,
)

NAN, INF = float("nan"), float("inf")


def refusal(build: Callable[[], object]) -> ContractError:
    """The error of a call that must fail."""
    with pytest.raises(ContractError) as caught:
        build()
    return caught.value


def lines(error: ContractError) -> list[str]:
    return [str(problem) for problem in error.problems]


# Sharding

BOUNDS_REFUSALS = [
    pytest.param(
        "sequence_shard_bounds", ((0, 3), (4, 8)), "gap", "[1]: expected start 3 (no gap), got (4, 8)", id="gap"
    ),
    pytest.param(
        "sequence_shard_bounds",
        ((0, 5), (4, 8)),
        "overlap",
        "[1]: expected start 5 (no overlap), got (4, 8)",
        id="overlap",
    ),
    pytest.param(
        "sequence_shard_bounds",
        ((1, 4), (4, 8)),
        "gap",
        "[0]: expected start 0 (no gap), got (1, 4)",
        id="late start",
    ),
    pytest.param(
        "sequence_shard_bounds",
        ((-1, 4), (4, 8)),
        "overlap",
        "[0]: expected start 0 (no overlap), got (-1, 4)",
        id="negative start",
    ),
    pytest.param(
        "sequence_shard_bounds",
        ((0, 8), (8, 8)),
        "empty",
        "[1]: expected a shard that is not empty, got (8, 8)",
        id="empty sequence shard",
    ),
    pytest.param(
        "vocab_shard_bounds",
        ((0, 0), (0, 32)),
        "empty",
        "[0]: expected a shard that is not empty, got (0, 0)",
        id="empty vocab shard",
    ),
    pytest.param(
        "vocab_shard_bounds",
        ((0, 16), (20, 32)),
        "gap",
        "[1]: expected start 16 (no gap), got (20, 32)",
        id="gap tp",
    ),
    pytest.param(
        "vocab_shard_bounds",
        ((0, 16), (12, 32)),
        "overlap",
        "[1]: expected start 16 (no overlap), got (12, 32)",
        id="overlap tp",
    ),
    pytest.param(
        "vocab_shard_bounds",
        ((0, 32),),
        "shards",
        ": expected 2 shards, one per rank, got 1 shards ((0, 32),)",
        id="too few",
    ),
    pytest.param(
        "sequence_shard_bounds",
        ((0, 2), (2, 4), (4, 8)),
        "shards",
        ": expected 2 shards, one per rank, got 3 shards ((0, 2), (2, 4), (4, 8))",
        id="too many",
    ),
]


@pytest.mark.parametrize(("field", "bounds", "detail", "words"), BOUNDS_REFUSALS)
def test_bounds_that_are_no_partition(
    place: dict[str, Any], field: str, bounds: object, detail: str, words: str
) -> None:
    error = refusal(lambda: ShardingSpec(**place | {field: bounds}))
    assert type(error) is ShardingError
    assert [(each.code, str(each)) for each in error.problems] == [
        (f"sharding.{detail}", f"sharding.{field}{words}")
    ]


@pytest.mark.parametrize(
    ("field", "bounds", "words"),
    [
        ("sequence_shard_bounds", ((0, 4), (4, 7)), "sequence_shard_bounds[1]: expected stop 8, got stop 7"),
        ("sequence_shard_bounds", ((0, 4), (4, 9)), "sequence_shard_bounds[1]: expected stop 8, got stop 9"),
        ("vocab_shard_bounds", ((0, 16), (16, 30)), "vocab_shard_bounds[1]: expected stop 32, got stop 30"),
        (
            "vocab_shard_bounds",
            ((0, 14), (14, 32)),
            "vocab_shard_bounds[1]: expected a start on a tile border (a multiple of 4), got 14",
        ),
    ],
)
def test_partitions_of_another_batch(
    contract: GRPOLossContract, place: dict[str, Any], field: str, bounds: object, words: str
) -> None:
    sharding = ShardingSpec(**place | {field: bounds})
    error = refusal(lambda: contract.check_sharding(sharding))
    assert type(error) is ShardingError
    assert lines(error) == [f"sharding.{words}"]
    assert contract.sharding_problems(sharding) == error.problems


def test_a_sharding_that_fits_has_no_problems(contract: GRPOLossContract, place: dict[str, Any]) -> None:
    contract.check_sharding(ShardingSpec(**place))
    assert contract.sharding_problems(ShardingSpec(**place)) == ()


@pytest.mark.parametrize("world", [0, 2, 8])
def test_context_parallelism_is_a_loss_contract_error(place: dict[str, Any], world: int) -> None:
    error = refusal(lambda: ShardingSpec(**place | {"cp_world_size": world}))
    assert type(error) is LossContractError
    expected = "1 (context parallelism is resolved before the logits exist)"
    assert lines(error) == [f"sharding.cp_world_size: expected {expected}, got {world}"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tp_rank": 2}, "tp_rank: expected 0 to 1, got 2"),
        ({"dp_rank": -1}, "dp_rank: expected 0 to 1, got -1"),
    ],
)
def test_a_rank_outside_its_axis(place: dict[str, Any], changes: dict[str, int], words: str) -> None:
    assert lines(refusal(lambda: ShardingSpec(**place | changes))) == [f"sharding.{words}"]


def test_a_degree_below_one_is_named_beside_the_number_of_shards(place: dict[str, Any]) -> None:
    assert lines(refusal(lambda: ShardingSpec(**place | {"dp_degree": 0}))) == [
        "sharding.dp_degree: expected at least 1, got 0",
        "sharding.sequence_shard_bounds: expected 0 shards, one per rank, got 2 shards ((0, 4), (4, 8))",
    ]


@pytest.mark.parametrize(
    ("tp", "dp", "rank", "words"),
    [
        (9, 1, 0, ["tp_degree: expected 1 to 8, the number of vocabulary tiles, got 9"]),
        (1, 9, 0, ["dp_degree: expected 1 to 8, the number of sequences, got 9"]),
        (2, 2, 4, ["rank: expected 0 to 3 in layout 2x2, got 4"]),
        (2, 2, -1, ["rank: expected 0 to 3 in layout 2x2, got -1"]),
        (
            9,
            12,
            0,
            [
                "tp_degree: expected 1 to 8, the number of vocabulary tiles, got 9",
                "dp_degree: expected 1 to 8, the number of sequences, got 12",
            ],
        ),
    ],
)
def test_degrees_that_leave_a_rank_with_nothing(
    contract: GRPOLossContract, tp: int, dp: int, rank: int, words: list[str]
) -> None:
    error = refusal(lambda: ShardingSpec.even(tp, dp, rank=rank, contract=contract))
    assert type(error) is ShardingError
    assert lines(error) == [f"sharding.{each}" for each in words]


@pytest.mark.parametrize("degree", [0, -2])
def test_a_degree_of_nothing_is_refused(contract: GRPOLossContract, degree: int) -> None:
    error = refusal(lambda: ShardingSpec.even(degree, 1, contract=contract))
    expected = "1 to 8, the number of vocabulary tiles"
    assert lines(error)[0] == f"sharding.tp_degree: expected {expected}, got {degree}"


def test_token_slots_that_disagree_with_the_owned_sequences(
    sections: dict[str, Any], place: dict[str, Any]
) -> None:
    sections["logprob"]["num_tokens"] = 20
    stated = GRPOLossContract(**sections)
    error = refusal(lambda: stated.check_sharding(ShardingSpec(**place)))
    assert type(error) is LogprobContractError
    assert lines(error) == ["logprob.num_tokens: expected 16 (owned sequences (0, 4) x 4 slots), got 20"]
    sections["logprob"]["num_tokens"] = 16
    GRPOLossContract(**sections).check_sharding(ShardingSpec(**place))


# Scope, groups


@pytest.mark.parametrize(
    ("mine", "theirs", "relation"),
    [
        ("cross_layout_bitwise", "fixed_topology", "stronger"),
        ("fixed_topology", "cross_layout_bitwise", "weaker"),
    ],
)
def test_a_scope_unlike_the_logprob_paths(sections: dict[str, Any], mine: str, theirs: str, relation: str) -> None:
    sections["reduction"]["determinism_scope"] = mine
    sections["logprob"]["determinism_scope"] = theirs
    error = refusal(lambda: GRPOLossContract(**sections))
    assert type(error) is LossContractError
    expected = f"the logprob path's scope {theirs}"
    assert lines(error) == [f"reduction.determinism_scope: expected {expected}, got {mine}, which is {relation}"]
    sections["logprob"]["determinism_scope"] = mine
    assert GRPOLossContract(**sections).reduction.determinism_scope == mine


@pytest.mark.parametrize("kind", ["mean_std_population", "mean_std_sample"])
def test_a_std_over_one_sequence(sections: dict[str, Any], kind: str) -> None:
    sections["objective"]["advantage"]["kind"] = kind
    sections["geometry"]["group_boundaries"] = (0, 3, 4, 7, 8)
    error = refusal(lambda: GRPOLossContract(**sections))
    assert type(error) is LossContractError
    need = f"at least 2 sequences in each group ({kind} needs a spread; mean_only does not)"
    assert lines(error) == [
        f"geometry.group_boundaries[1]: expected {need}, got group 1 = [3, 4)",
        f"geometry.group_boundaries[3]: expected {need}, got group 3 = [7, 8)",
    ]


def test_mean_only_takes_one_sequence(sections: dict[str, Any]) -> None:
    sections["objective"]["advantage"]["kind"] = "mean_only"
    sections["geometry"]["group_boundaries"] = (0, 1, 8)
    assert GRPOLossContract(**sections).geometry.groups == ((0, 1), (1, 8))


@pytest.mark.parametrize("edges", [(), (0,), (1, 8), (0, 7), (0, 9), (0, 4, 4, 8), (0, 5, 3, 8)])
def test_group_boundaries_that_do_not_cover_the_batch(sections: dict[str, Any], edges: tuple[int, ...]) -> None:
    sections["geometry"]["group_boundaries"] = edges
    error = refusal(lambda: GRPOLossContract(**sections))
    expected = "increasing offsets from 0 to num_sequences 8"
    assert f"geometry.group_boundaries: expected {expected}, got {list(edges)}" in lines(error)


# Normalizers and what belongs to them


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"token_normalizer": "fixed_constant"},
            "fixed_constant: expected a number (token_normalizer is fixed_constant), got nothing",
        ),
        (
            {"token_normalizer": "length_power"},
            "alpha: expected a number (token_normalizer is length_power), got nothing",
        ),
        (
            {"fixed_constant": 32},
            "fixed_constant: expected nothing (it belongs to fixed_constant; "
            "token_normalizer is global_active_tokens), got 32.0",
        ),
        (
            {"token_normalizer": "per_sequence_then_mean", "alpha": 0.5},
            "alpha: expected nothing (it belongs to length_power; "
            "token_normalizer is per_sequence_then_mean), got 0.5",
        ),
        (
            {"token_normalizer": "length_power", "alpha": 0.5, "sequence_denominator": "all"},
            "sequence_denominator: expected nothing (it belongs to per_sequence_then_mean; "
            "token_normalizer is length_power), got all",
        ),
        (
            {"token_normalizer": "fixed_constant", "fixed_constant": 0},
            "fixed_constant: expected a number above 0, got 0.0",
        ),
    ],
)
def test_parameters_of_a_normalizer(fields: dict[str, Any], words: str) -> None:
    error = refusal(lambda: ReductionSpec(**fields))
    assert type(error) is LossContractError
    assert lines(error) == [f"reduction.{words}"]


def test_beta_without_a_reference(contract: GRPOLossContract, sections: dict[str, Any]) -> None:
    (problem,) = contract.call_problems(has_reference=False)
    assert problem.code == "loss_contract.reference"
    assert str(problem) == "ref_logits: expected reference logits (beta is 0.04), got nothing"
    assert contract.call_problems(has_reference=True) == ()
    sections["objective"]["beta"] = 0
    assert GRPOLossContract(**sections).call_problems(has_reference=False) == ()


# Values of fields


@pytest.mark.parametrize(
    ("section", "field", "value", "words"),
    [
        ("objective", "clip_eps_low", -0.1, "expected at least 0, got -0.1"),
        ("objective", "clip_eps_low", 1.5, "expected at most 1 (a ratio is never negative), got 1.5"),
        ("objective", "clip_eps_high", -0.1, "expected at least 0, got -0.1"),
        ("objective", "beta", -1, "expected at least 0, got -1.0"),
        ("objective", "temperature", 0, "expected a number above 0, got 0.0"),
        ("objective", "temperature", NAN, "expected a finite number, got nan"),
        ("objective", "beta", INF, "expected a finite number, got inf"),
        ("objective", "kl_estimator", "k4", "expected 'k1', 'k2' or 'k3', got k4"),
        ("objective", "clip", 0.2, "expected no such field, got 0.2"),
        ("objective", "beta", "much", "expected a valid number, unable to parse string as a number, got much"),
        ("objective.advantage", "std_eps", 0, "expected a number above 0, got 0.0"),
        ("objective.advantage", "std_eps", NAN, "expected a finite number, got nan"),
        (
            "objective.advantage",
            "kind",
            "mean",
            "expected 'mean_std_population', 'mean_std_sample' or 'mean_only', got mean",
        ),
        ("objective.advantage", "std_eps_mode", "max", "expected 'floor', 'add' or 'variance', got max"),
        ("reduction", "alpha", -INF, "expected a finite number, got -inf"),
        ("reduction", "token_normalizer", None, "expected 'global_active_tokens', "),
        ("logprob", "dtype", "float64", "expected 'float16', 'bfloat16' or 'float32', got float64"),
        ("logprob", "real_vocab_size", 0, "expected at least 1, got 0"),
        ("logprob", "padded_vocab_size", 29, "expected at least real_vocab_size 30, got 29"),
        ("logprob", "num_vocab_tiles", 0, "expected at least 1, got 0"),
        (
            "logprob",
            "num_vocab_tiles",
            2.5,
            "expected a valid integer, got a number with a fractional part, got 2.5",
        ),
        (
            "logprob",
            "num_vocab_tiles",
            31,
            "expected a number of tiles that leaves none empty over 32 columns, such as 16, got 31",
        ),
        ("logprob", "num_tokens", 0, "expected at least 1, got 0"),
        ("geometry", "num_sequences", 0, "expected at least 1, got 0"),
        ("geometry", "padded_seq_len", -4, "expected at least 1, got -4"),
    ],
)
def test_values_out_of_range(
    sections: dict[str, Any], section: str, field: str, value: object, words: str
) -> None:
    part = sections
    for name in section.split("."):
        part = part[name]
    part[field] = value
    found = lines(refusal(lambda: GRPOLossContract(**sections)))
    assert any(line.startswith(f"{section}.{field}: {words}") for line in found), found


def test_a_missing_part(sections: dict[str, Any]) -> None:
    del sections["logprob"], sections["geometry"]["padded_seq_len"]
    assert lines(refusal(lambda: GRPOLossContract(**sections))) == [
        "logprob: expected a value, got nothing",
        "geometry.padded_seq_len: expected a value, got nothing",
    ]


def test_a_part_that_is_no_part(sections: dict[str, Any]) -> None:
    sections["logprob"] = 3
    expected = "a valid dictionary or instance of LogprobContract"
    assert lines(refusal(lambda: GRPOLossContract(**sections))) == [f"logprob: expected {expected}, got 3"]


# All at once


def test_every_problem_comes_in_one_error(sections: dict[str, Any]) -> None:
    sections["objective"] |= {"temperature": NAN, "beta": -1, "epsilon": 0.2}
    sections["objective"]["advantage"] = {"kind": "best", "std_eps": 0}
    sections["reduction"] = {"token_normalizer": "length_power", "fixed_constant": 3}
    sections["logprob"] |= {"real_vocab_size": "many", "dtype": "int8"}
    sections["geometry"] |= {"num_sequences": 0}
    error = refusal(lambda: GRPOLossContract(**sections))
    assert type(error) is ContractError  # loss and logprob both
    assert {problem.where for problem in error.problems} == {
        "objective.temperature",
        "objective.beta",
        "objective.epsilon",
        "objective.advantage.kind",
        "objective.advantage.std_eps",
        "reduction.alpha",
        "reduction.fixed_constant",
        "logprob.real_vocab_size",
        "logprob.dtype",
        "geometry.num_sequences",
        "geometry.group_boundaries",
    }
    assert str(error).startswith("invalid contract (11 problems):\n  - ")
    assert len({str(problem) for problem in error.problems}) == 11


def test_the_class_is_that_of_the_part_at_fault(sections: dict[str, Any]) -> None:
    sections["logprob"]["num_vocab_tiles"] = "some"
    error = refusal(lambda: GRPOLossContract(**sections))
    assert type(error) is LogprobContractError
    assert error.problems[0].code == "logprob_contract.int_parsing"


def test_a_part_alone_names_its_fields_as_within_the_whole() -> None:
    fields = {"padded_vocab_size": 4, "num_vocab_tiles": 0}
    for size, place in ((1, "num_vocab_tiles"), ("x", "real_vocab_size")):
        error = refusal(lambda size=size: LogprobContract(real_vocab_size=size, **fields))
        assert [problem.where for problem in error.problems] == [f"logprob.{place}"]


def test_problems_is_pure(sections: dict[str, Any]) -> None:
    sections["objective"]["beta"] = -1
    before = repr(sections)
    found = GRPOLossContract.problems(sections)
    assert found == GRPOLossContract.problems(sections)
    assert found == (Problem("loss_contract.range", "objective.beta", "at least 0", "-1.0"),)
    assert repr(sections) == before
    sections["objective"]["beta"] = 0.5
    assert GRPOLossContract.problems(sections) == ()


def test_a_refused_part_leaves_nothing_behind_for_the_next(sections: dict[str, Any]) -> None:
    refusal(lambda: ObjectiveSpec(beta=-1))
    assert ObjectiveSpec(beta=1).beta == 1
    assert GRPOLossContract(**sections)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "GRPOLossContract: expected valid JSON, got EOF while parsing an object at line 1 column 1"),
        ("[1]", "GRPOLossContract: expected a JSON object, got list"),
    ],
)
def test_text_that_is_no_contract(text: str, words: str) -> None:
    assert lines(refusal(lambda: GRPOLossContract.model_validate_json(text))) == [words]


def test_a_mapping_is_refused_like_plain_fields(sections: dict[str, Any]) -> None:
    sections["objective"]["beta"] = -1
    error = refusal(lambda: GRPOLossContract.model_validate(sections))
    assert lines(error) == ["objective.beta: expected at least 0, got -1.0"]
    assert "expected a mapping, got int" in str(refusal(lambda: GRPOLossContract.model_validate(3)))
