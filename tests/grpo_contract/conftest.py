"""A contract that is right, as plain data; tests break one thing of it."""

from typing import Any

import pytest

from grpo_contract import GRPOLossContract, ShardingSpec


@pytest.fixture
def sections() -> dict[str, Any]:
    """Every field of a valid contract, nested as the contract nests it."""
    return {
        "objective": {"beta": 0.04, "advantage": {"kind": "mean_std_population"}},
        "reduction": {"token_normalizer": "global_active_tokens"},
        "logprob": {"real_vocab_size": 30, "padded_vocab_size": 32, "num_vocab_tiles": 8},
        "geometry": {"num_sequences": 8, "padded_seq_len": 4, "group_boundaries": (0, 3, 8)},
    }


@pytest.fixture
def contract(sections: dict[str, Any]) -> GRPOLossContract:
    """Eight sequences of four slots, 32 columns in eight tiles of four."""
    return GRPOLossContract(**sections)


@pytest.fixture
def place(contract: GRPOLossContract) -> dict[str, Any]:
    """Every field of a valid sharding: rank (1, 0) of 2x2."""
    return ShardingSpec.even(2, 2, rank=1, contract=contract).model_dump()
