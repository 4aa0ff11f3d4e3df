"""The objective: what each token contributes, and how rewards become advantages."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from grpo_contract.errors import Problem
from grpo_contract.model import SMALLEST_FLOAT32, ContractModel


class KLEstimator(StrEnum):
    """KL per token with d = logp_ref - logp (Schulman, "Approximating KL divergence")."""

    K1 = "k1"
    """-d"""
    K2 = "k2"
    """d * d / 2"""
    K3 = "k3"
    """expm1(d) - d"""


class AdvantageKind(StrEnum):
    """How the rewards of a group become advantages."""

    MEAN_STD_POPULATION = "mean_std_population"
    MEAN_STD_SAMPLE = "mean_std_sample"
    MEAN_ONLY = "mean_only"


class StdEpsMode(StrEnum):
    """Where std_eps enters the divisor."""

    FLOOR = "floor"
    """max(std, eps)"""
    ADD = "add"
    """std + eps"""
    VARIANCE = "variance"
    """sqrt(var + eps)"""


class AdvantageSpec(ContractModel):
    """Group-relative advantages (DeepSeekMath): (reward - group mean) / std, exactly 0 for equal rewards.

    std_eps is in units of the reward, except in `variance` mode, where it is in units of its square.
    """

    section: ClassVar[str] = "objective.advantage"
    error_code: ClassVar[str] = "loss_contract"

    kind: AdvantageKind = AdvantageKind.MEAN_STD_POPULATION
    std_eps: float = 1e-6
    std_eps_mode: StdEpsMode = StdEpsMode.FLOOR

    @property
    def uses_std(self) -> bool:
        """Whether a spread is needed, and so at least two sequences in every group."""
        return self.kind is not AdvantageKind.MEAN_ONLY

    def own_problems(self) -> list[Problem]:
        return self.range_problems("std_eps", above=0)


class ObjectiveSpec(ContractModel):
    """The clipped surrogate plus beta times the KL to the reference.

    Clip widths and beta have no unit; the ratio is kept inside [1 - clip_eps_low, 1 + clip_eps_high]. The
    temperature divides policy and reference logits once, before the softmax.
    """

    section: ClassVar[str] = "objective"
    error_code: ClassVar[str] = "loss_contract"

    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2
    beta: float = 0.04
    kl_estimator: KLEstimator = KLEstimator.K3
    temperature: float = 1.0
    advantage: AdvantageSpec = Field(default_factory=AdvantageSpec)

    def own_problems(self) -> list[Problem]:
        found = [
            *self.range_problems("clip_eps_low", least=0),
            *self.range_problems("clip_eps_high", least=0),
            *self.range_problems("beta", least=0),
            *self.range_problems("temperature", above=0),
        ]
        if self.temperature > 1 / SMALLEST_FLOAT32:
            expected = f"at most {1 / SMALLEST_FLOAT32:.8g} (its reciprocal is a normal float32)"
            found.append(self.problem("range", "temperature", expected, self.temperature))
        if self.clip_eps_low > 1:
            found.append(
                self.problem("range", "clip_eps_low", "at most 1 (a ratio is never negative)", self.clip_eps_low)
            )
        return found
