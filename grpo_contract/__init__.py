"""What must hold: contracts of a GRPO loss, readable without torch."""

from grpo_contract.bounds import even_bounds, owner_of
from grpo_contract.errors import (
    ContractError,
    GRPOVerifyError,
    InputError,
    LogprobContractError,
    LossContractError,
    PreflightError,
    Problem,
    ShardingError,
    error_from,
)
from grpo_contract.geometry import BatchGeometry
from grpo_contract.logprob import LogitsDtype, LogprobContract, default_num_vocab_tiles
from grpo_contract.loss import FieldDifference, GRPOLossContract
from grpo_contract.objective import AdvantageKind, AdvantageSpec, KLEstimator, ObjectiveSpec, StdEpsMode
from grpo_contract.reduction import DeterminismScope, ReductionSpec, SequenceDenominator, TokenNormalizer
from grpo_contract.sharding import ShardingSpec

__all__ = [
    "AdvantageKind",
    "AdvantageSpec",
    "BatchGeometry",
    "ContractError",
    "DeterminismScope",
    "FieldDifference",
    "GRPOLossContract",
    "GRPOVerifyError",
    "InputError",
    "KLEstimator",
    "LogitsDtype",
    "LogprobContract",
    "LogprobContractError",
    "LossContractError",
    "ObjectiveSpec",
    "PreflightError",
    "Problem",
    "ReductionSpec",
    "SequenceDenominator",
    "ShardingError",
    "ShardingSpec",
    "StdEpsMode",
    "TokenNormalizer",
    "default_num_vocab_tiles",
    "error_from",
    "even_bounds",
    "owner_of",
]
