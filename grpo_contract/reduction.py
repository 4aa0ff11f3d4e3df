"""The reduction: how token terms become one number."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

from pydantic import model_validator

from grpo_contract.errors import Problem
from grpo_contract.model import ContractModel


class TokenNormalizer(StrEnum):
    """The divisor of the token terms (L = active tokens of a sequence)."""

    GLOBAL_ACTIVE_TOKENS = "global_active_tokens"
    """sum of all terms / active tokens of the global batch (DAPO)"""
    PER_SEQUENCE_THEN_MEAN = "per_sequence_then_mean"
    """mean over sequences of (sum of a sequence's terms / L) (original GRPO)"""
    FIXED_CONSTANT = "fixed_constant"
    """sum of all terms / a declared constant (Dr. GRPO)"""
    LENGTH_POWER = "length_power"
    """weight L^(alpha-1) / num_sequences per token, 0 where L = 0"""


class SequenceDenominator(StrEnum):
    """Which sequences per_sequence_then_mean averages over."""

    LIVE = "live"
    """those with an active token"""
    ALL = "all"


class DeterminismScope(StrEnum):
    """What equal bits are promised over; the second is the stronger."""

    FIXED_TOPOLOGY = "fixed_topology"
    CROSS_LAYOUT_BITWISE = "cross_layout_bitwise"


class ReductionSpec(ContractModel):
    """Normalizer and scope. `sequence_denominator` belongs to per_sequence_then_mean alone (default live)."""

    section: ClassVar[str] = "reduction"
    error_code: ClassVar[str] = "loss_contract"

    token_normalizer: TokenNormalizer = TokenNormalizer.GLOBAL_ACTIVE_TOKENS
    fixed_constant: float | None = None
    alpha: float | None = None
    sequence_denominator: SequenceDenominator | None = None
    determinism_scope: DeterminismScope = DeterminismScope.CROSS_LAYOUT_BITWISE

    @model_validator(mode="before")
    @classmethod
    def _write_out_the_default(cls, fields: Any) -> Any:
        """Two ways to say `live` must not be two identities."""
        if not isinstance(fields, dict) or fields.get("sequence_denominator") is not None:
            return fields
        if fields.get("token_normalizer") != TokenNormalizer.PER_SEQUENCE_THEN_MEAN:
            return fields
        return {**fields, "sequence_denominator": SequenceDenominator.LIVE}

    @property
    def counts_all_sequences(self) -> bool:
        """Whether a mean over sequences includes those without an active token."""
        return self.sequence_denominator is SequenceDenominator.ALL

    def own_problems(self) -> list[Problem]:
        found = [
            *self._owned("fixed_constant", TokenNormalizer.FIXED_CONSTANT, needed=True),
            *self._owned("alpha", TokenNormalizer.LENGTH_POWER, needed=True),
            *self._owned("sequence_denominator", TokenNormalizer.PER_SEQUENCE_THEN_MEAN, needed=False),
        ]
        if self.fixed_constant is not None:
            found += self.range_problems("fixed_constant", above=0)
        return found

    def _owned(self, field: str, owner: TokenNormalizer, *, needed: bool) -> list[Problem]:
        value = getattr(self, field)
        if self.token_normalizer is owner and value is None and needed:
            return [self.problem("missing", field, f"a number (token_normalizer is {owner.value})", value)]
        if self.token_normalizer is not owner and value is not None:
            mine = self.token_normalizer.value
            expected = f"nothing (it belongs to {owner.value}; token_normalizer is {mine})"
            return [self.problem("unused", field, expected, value)]
        return []
