"""Fingerprints, differences, and contracts as text."""

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_contract import (
    ContractError,
    FieldDifference,
    GRPOLossContract,
    GRPOVerifyError,
    InputError,
    LogprobContractError,
    LossContractError,
    PreflightError,
    Problem,
    ShardingError,
    ShardingSpec,
    error_from,
)

FROZEN = "fc5ef7c25622195772ccc430291990e02c47ec82e1a4e48567701ae59309f67a"
FROZEN_INVOCATION = "b6483864a0de4e16b73e3915cef3d89c77894c82edbbac7c8b6b439f31363e16"

CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("objective.clip_eps_low", {"objective": {"clip_eps_low": 0.1}}),
    ("objective.clip_eps_high", {"objective": {"clip_eps_high": 0.28}}),
    ("objective.beta", {"objective": {"beta": 0.05}}),
    ("objective.kl_estimator", {"objective": {"kl_estimator": "k1"}}),
    ("objective.temperature", {"objective": {"temperature": 0.9}}),
    ("objective.advantage.kind", {"objective": {"advantage": {"kind": "mean_std_sample"}}}),
    ("objective.advantage.std_eps", {"objective": {"advantage": {"std_eps": 1e-4}}}),
    ("objective.advantage.std_eps_mode", {"objective": {"advantage": {"std_eps_mode": "add"}}}),
    (
        "reduction.sequence_denominator reduction.token_normalizer",
        {"reduction": {"token_normalizer": "per_sequence_then_mean"}},
    ),
    (
        "reduction.fixed_constant reduction.token_normalizer",
        {"reduction": {"token_normalizer": "fixed_constant", "fixed_constant": 8}},
    ),
    (
        "reduction.alpha reduction.token_normalizer",
        {"reduction": {"token_normalizer": "length_power", "alpha": 0.5}},
    ),
    (
        "logprob.determinism_scope reduction.determinism_scope",
        {
            "reduction": {"determinism_scope": "fixed_topology"},
            "logprob": {"determinism_scope": "fixed_topology"},
        },
    ),
    ("logprob.dtype", {"logprob": {"dtype": "float16"}}),
    ("logprob.real_vocab_size", {"logprob": {"real_vocab_size": 29}}),
    ("logprob.padded_vocab_size", {"logprob": {"padded_vocab_size": 31}}),
    ("logprob.num_vocab_tiles", {"logprob": {"num_vocab_tiles": 4}}),
    (
        "geometry.group_boundaries geometry.num_sequences",
        {"geometry": {"num_sequences": 9, "group_boundaries": (0, 3, 9)}},
    ),
    ("geometry.padded_seq_len", {"geometry": {"padded_seq_len": 5}}),
    ("geometry.group_boundaries", {"geometry": {"group_boundaries": (0, 4, 8)}}),
]


def changed(sections: dict[str, Any], change: dict[str, Any]) -> GRPOLossContract:
    merged = {name: dict(part) for name, part in sections.items()}
    for name, fields in change.items():
        merged[name] |= fields
    return GRPOLossContract(**merged)


def leaves(model: Any, prefix: str = "") -> set[str]:
    """Names of all fields that are no model themselves."""
    found: set[str] = set()
    for name in type(model).model_fields:
        value = getattr(model, name)
        inner = hasattr(value, "model_dump")
        found |= leaves(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}"}
    return found


def test_the_fingerprint_of_a_contract_is_the_one_of_every_release(contract: GRPOLossContract) -> None:
    assert contract.numeric_fingerprint() == FROZEN
    sharding = ShardingSpec.even(2, 2, contract=contract)
    assert contract.invocation_fingerprint(sharding) == FROZEN_INVOCATION


@pytest.mark.parametrize(("fields", "change"), CHANGES, ids=[fields for fields, _ in CHANGES])
def test_every_field_changes_the_identity_and_is_named(
    contract: GRPOLossContract, sections: dict[str, Any], fields: str, change: dict[str, Any]
) -> None:
    other = changed(sections, change)
    assert other.numeric_fingerprint() != contract.numeric_fingerprint()
    differences = contract.differences(other)
    assert [each.field for each in differences] == fields.split()
    assert [each.field for each in other.differences(contract)] == fields.split()
    assert all(each.mine != each.theirs for each in differences)


def test_no_field_is_left_out_of_the_changes(contract: GRPOLossContract) -> None:
    covered = {field for fields, _ in CHANGES for field in fields.split()}
    # num_tokens is a rank's own, and there is only one kind of math so far.
    assert leaves(contract) - covered == {"logprob.num_tokens", "math"}


def test_fingerprints_of_all_changes_differ_from_each_other(sections: dict[str, Any]) -> None:
    prints = {changed(sections, change).numeric_fingerprint() for _, change in CHANGES}
    assert len(prints) == len(CHANGES)


def test_the_numeric_identity_knows_no_rank(contract: GRPOLossContract, sections: dict[str, Any]) -> None:
    assert contract.numeric_fingerprint() == changed(sections, {}).numeric_fingerprint()
    for tokens in (8, 16):
        owner = changed(sections, {"logprob": {"num_tokens": tokens}})
        assert owner.numeric_fingerprint() == contract.numeric_fingerprint()
        assert contract.differences(owner) == (FieldDifference("logprob.num_tokens", None, tokens),)


def test_a_launch_configuration_is_part_of_the_numeric_identity(contract: GRPOLossContract) -> None:
    launched = contract.numeric_fingerprint({"num_warps": 4, "tile": 8192})
    assert launched == contract.numeric_fingerprint({"tile": 8192, "num_warps": 4})
    assert len({launched, contract.numeric_fingerprint(), contract.numeric_fingerprint({"num_warps": 8})}) == 3


def test_the_invocation_identity_knows_the_mesh_and_not_the_rank(contract: GRPOLossContract) -> None:
    prints = {
        layout: {
            contract.invocation_fingerprint(ShardingSpec.even(*layout, rank=rank, contract=contract))
            for rank in range(layout[0] * layout[1])
        }
        for layout in ((1, 1), (2, 1), (1, 2), (2, 2), (3, 1))
    }
    assert all(len(each) == 1 for each in prints.values())
    assert len(set.union(*prints.values())) == len(prints)
    even = ShardingSpec.even(1, 2, contract=contract)
    uneven = even.model_copy(update={"sequence_shard_bounds": ((0, 3), (3, 8))})
    assert contract.invocation_fingerprint(even) != contract.invocation_fingerprint(uneven)


def test_two_ways_to_say_the_same_are_one_identity(sections: dict[str, Any]) -> None:
    said = [
        {"reduction": {"token_normalizer": "per_sequence_then_mean"}},
        {"reduction": {"token_normalizer": "per_sequence_then_mean", "sequence_denominator": "live"}},
        {"reduction": {"token_normalizer": "per_sequence_then_mean", "sequence_denominator": None}},
    ]
    assert len({changed(sections, each).numeric_fingerprint() for each in said}) == 1
    whole, fraction = ({"objective": {"beta": value}} for value in (1, 1.0))
    assert changed(sections, whole).numeric_fingerprint() == changed(sections, fraction).numeric_fingerprint()


@pytest.mark.parametrize(("fields", "change"), CHANGES, ids=[fields for fields, _ in CHANGES])
def test_a_contract_survives_text_and_pickle(
    sections: dict[str, Any], fields: str, change: dict[str, Any]
) -> None:
    contract = changed(sections, change)
    copies = [
        GRPOLossContract.model_validate_json(contract.model_dump_json()),
        GRPOLossContract.model_validate(contract.model_dump()),
        GRPOLossContract(**contract.model_dump(mode="json")),
        pickle.loads(pickle.dumps(contract)),
    ]
    assert all(copy == contract for copy in copies), fields
    assert {copy.numeric_fingerprint() for copy in copies} == {contract.numeric_fingerprint()}
    assert len({contract, *copies}) == 1


def test_a_sharding_survives_text(place: dict[str, Any]) -> None:
    sharding = ShardingSpec(**place)
    assert ShardingSpec.model_validate_json(sharding.model_dump_json()) == sharding


def test_contracts_are_frozen(contract: GRPOLossContract, place: dict[str, Any]) -> None:
    for part, name in ((contract, "math"), (contract.objective, "beta"), (ShardingSpec(**place), "tp_rank")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, name, 1)


# Errors

PROBLEM = Problem("sharding.gap", "sharding.sequence_shard_bounds[1]", "start 3", "(4, 8)")


@pytest.mark.parametrize(
    "kind",
    [ContractError, LossContractError, LogprobContractError, ShardingError, InputError, PreflightError],
)
def test_an_error_survives_pickling(kind: type[GRPOVerifyError]) -> None:
    for content in (PROBLEM, [PROBLEM, PROBLEM], "in words"):
        error = kind(content)
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert (copy.problems, str(copy), copy.code) == (error.problems, str(error), error.code)


def test_errors_are_value_errors_with_stable_codes() -> None:
    codes = {
        GRPOVerifyError: "error",
        ContractError: "contract",
        LossContractError: "loss_contract",
        LogprobContractError: "logprob_contract",
        ShardingError: "sharding",
        InputError: "input",
        PreflightError: "preflight",
    }
    assert {kind: kind.code for kind in codes} == codes
    assert all(issubclass(kind, ValueError) for kind in codes)
    below = {LossContractError, LogprobContractError, ShardingError}
    assert {kind for kind in codes if issubclass(kind, ContractError)} == below | {ContractError}


def test_a_message_says_expected_and_got() -> None:
    assert str(ShardingError(PROBLEM)) == (
        "invalid sharding: sharding.sequence_shard_bounds[1]: expected start 3, got (4, 8)"
    )
    two = str(ShardingError([PROBLEM, PROBLEM]))
    assert two.startswith("invalid sharding (2 problems):\n  - sharding.sequence_shard_bounds[1]: expected")
    assert Problem(**PROBLEM.to_dict()) == PROBLEM


@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        (["sharding.gap", "sharding.end"], ShardingError),
        (["sharding.gap", "loss_contract.cp"], ContractError),
        (["logprob_contract.tiles", "loss_contract.cp", "contract.x"], ContractError),
        (["input.id"], InputError),
        (["input.id", "preflight.field"], GRPOVerifyError),
    ],
)
def test_a_mixture_takes_the_nearest_common_class(codes: list[str], kind: type[GRPOVerifyError]) -> None:
    assert type(error_from([Problem(code, "here", "this", "that") for code in codes])) is kind
