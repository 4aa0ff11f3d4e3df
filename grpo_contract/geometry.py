"""The geometry of a batch: sequences, padded length, groups."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

from grpo_contract.errors import LossContractError, Problem
from grpo_contract.model import ContractModel


class BatchGeometry(ContractModel):
    """num_sequences rows of padded_seq_len slots; group g is [boundaries[g], boundaries[g + 1])."""

    section: ClassVar[str] = "geometry"
    error_code: ClassVar[str] = "loss_contract"

    num_sequences: int
    padded_seq_len: int
    group_boundaries: tuple[int, ...]

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """Half-open ranges of the groups' sequences."""
        return tuple(pairwise(self.group_boundaries))

    def own_problems(self) -> list[Problem]:
        found = [
            *self.range_problems("num_sequences", least=1),
            *self.range_problems("padded_seq_len", least=1),
        ]
        edges = self.group_boundaries
        increasing = all(low < high for low, high in self.groups)
        if len(edges) < 2 or edges[0] != 0 or edges[-1] != self.num_sequences or not increasing:
            expected = f"increasing offsets from 0 to num_sequences {self.num_sequences}"
            found.append(self.problem("groups", "group_boundaries", expected, list(edges)))
        return found


def uniform_boundaries(num_sequences: int, samples_per_prompt: int) -> tuple[int, ...]:
    """Offsets of equal groups. Raises LossContractError when they do not fill the batch."""
    whole = isinstance(samples_per_prompt, int) and samples_per_prompt >= 1
    if not whole or num_sequences % samples_per_prompt:
        expected = f"a divisor of num_sequences {num_sequences}"
        raise LossContractError(
            Problem("loss_contract.groups", "samples_per_prompt", expected, str(samples_per_prompt))
        )
    return tuple(range(0, num_sequences + 1, samples_per_prompt))
