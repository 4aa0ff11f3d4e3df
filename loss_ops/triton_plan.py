"""What a call needs beside its tensors, built once for a contract, a sharding and a device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import accumulate

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, ObjectiveSpec, ShardingSpec, TokenNormalizer
from loss_ops.identity_cache import IdentityCache
from loss_ops.triton_workspace import WorkspaceLayout
from loss_ops.vocab_shard import VocabShard


@dataclass(frozen=True, eq=False)
class Plan:
    """Index tensors and constants of one rank's calls."""

    device: torch.device
    contract: GRPOLossContract
    sharding: ShardingSpec

    @cached_property
    def shard(self) -> VocabShard:
        """This rank's part of the vocabulary."""
        return VocabShard.of(self.contract.logprob, self.sharding)

    @cached_property
    def objective(self) -> ObjectiveSpec:
        """The contract's objective."""
        return self.contract.objective

    @cached_property
    def inverse_temperature(self) -> float:
        """1 / temperature."""
        return 1.0 / self.objective.temperature

    @cached_property
    def first_sequence(self) -> int:
        """Global index of this rank's first sequence."""
        return self.sharding.sequence_shard[0]

    @cached_property
    def sequence_sizes(self) -> tuple[int, ...]:
        """Sequences of each DP rank."""
        return tuple(stop - start for start, stop in self.sharding.sequence_shard_bounds)

    @cached_property
    def advantage_constants(self) -> tuple[str, str]:
        """Kind and std_eps mode, for a kernel."""
        spec = self.objective.advantage
        return spec.kind.value, spec.std_eps_mode.value

    @cached_property
    def penalty_constants(self) -> tuple[bool, str]:
        """Whether the KL enters the loss, and its estimator, for a kernel."""
        return self.objective.beta != 0, self.objective.kl_estimator.value

    @cached_property
    def normalizer_constants(self) -> tuple[str, bool, bool]:
        """Normalizer, whether it counts all sequences, whether every token weighs the same, for a kernel."""
        reduction = self.contract.reduction
        return reduction.token_normalizer.value, reduction.counts_all_sequences, self.token_factors is None

    @cached_property
    def group_of_sequence(self) -> tuple[Tensor, Tensor]:
        """[B] int32 begin and end of each sequence's advantage group."""
        spans = [span for span in self.contract.geometry.groups for _ in range(span[1] - span[0])]
        begins, ends = zip(*spans, strict=True)
        return self._int32(begins), self._int32(ends)

    def _int32(self, values: tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    @cached_property
    def vocab_starts(self) -> Tensor:
        """[tp] int64 first column of each TP rank."""
        return torch.tensor([start for start, _ in self.shard.bounds], device=self.device)

    @cached_property
    def constant(self) -> Tensor:
        """[1] float64 constant of the normalizer `fixed_constant`, else 1."""
        constant = self.contract.reduction.fixed_constant
        return torch.tensor([1.0 if constant is None else constant], dtype=torch.float64, device=self.device)

    @cached_property
    def token_factors(self) -> Tensor | None:
        """[T + 1] float64 factor of a token by its sequence's length; None where every token weighs the same.

        Powers are host doubles: a device's pow may depend on an element's place.
        """
        alpha, longest = self.contract.reduction.alpha, self.contract.geometry.padded_seq_len
        match self.contract.reduction.token_normalizer:
            case TokenNormalizer.PER_SEQUENCE_THEN_MEAN:
                power = -1.0
            case TokenNormalizer.LENGTH_POWER:
                assert alpha is not None
                power = alpha - 1.0
            case _:
                return None
        factors = [0.0, *(float(length) ** power for length in range(1, longest + 1))]
        return torch.tensor(factors, dtype=torch.float64, device=self.device)

    @cached_property
    def normalizer_tensors(self) -> tuple[Tensor, Tensor]:
        """Factors (or a stand-in that is not read) and the constant."""
        factors = self.token_factors
        return (self.constant if factors is None else factors), self.constant

    @lru_cache(maxsize=2)  # noqa: B019  # a plan lives as long as its cache
    def workspace_layout(self, models: int) -> WorkspaceLayout:
        """Where the small results of a call lie."""
        own = self.sharding.num_local_sequences
        geometry = self.contract.geometry
        return WorkspaceLayout(own * geometry.padded_seq_len, own, geometry.num_sequences, models)

    @lru_cache(maxsize=2)  # noqa: B019  # a plan lives as long as its cache
    def merge_rows(self, models: int) -> tuple[Tensor, Tensor, Tensor]:
        """int64 rows of the joined gather: of maxima, of sums [models * K], of selected logits [models * tp]."""
        heights = [models * (2 * tiles + 1) for tiles in self.shard.tiles]
        bases = [0, *accumulate(heights)][:-1]
        maxima: list[int] = []
        sums: list[int] = []
        selected: list[int] = []
        for model in range(models):
            for base, tiles in zip(bases, self.shard.tiles, strict=True):
                first = base + model * (2 * tiles + 1)
                maxima += range(first, first + tiles)
                sums += range(first + tiles, first + 2 * tiles)
                selected.append(first + 2 * tiles)
        rows = (torch.tensor(each, dtype=torch.int64, device=self.device) for each in (maxima, sums, selected))
        return tuple(rows)  # type: ignore[return-value]


_plans: dict[torch.device, IdentityCache[Plan]] = {}


def plan_of(contract: GRPOLossContract, sharding: ShardingSpec, device: torch.device) -> Plan:
    """The plan of these very objects on this device."""
    plans = _plans.setdefault(device, IdentityCache())
    return plans.get((contract, sharding), partial(Plan, device))
