"""The sharding: one rank's place in a TP x DP layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from grpo_contract.bounds import Bounds, bounds_problems, end_problem, even_bounds
from grpo_contract.errors import Problem, error_from
from grpo_contract.geometry import BatchGeometry
from grpo_contract.logprob import LogprobContract
from grpo_contract.model import ContractModel

if TYPE_CHECKING:
    from grpo_contract.loss import GRPOLossContract


class ShardingSpec(ContractModel):
    """A rank's place, with the bounds of all ranks.

    vocab_shard_bounds partition the padded vocabulary columns in TP-rank order, on tile borders;
    sequence_shard_bounds partition the sequences in DP-rank order. Context parallelism is carried for
    provenance only: cp_world_size must be 1.
    """

    section: ClassVar[str] = "sharding"
    error_code: ClassVar[str] = "sharding"

    tp_rank: int = 0
    tp_degree: int = 1
    dp_rank: int = 0
    dp_degree: int = 1
    vocab_shard_bounds: Bounds
    sequence_shard_bounds: Bounds
    cp_rank: int = 0
    cp_world_size: int = 1

    @classmethod
    def even(cls, tp: int, dp: int, *, rank: int = 0, contract: GRPOLossContract) -> Self:
        """Whole tiles and whole sequences, as even as they go; rank = dp_rank * tp + tp_rank.

        Raises ShardingError when an axis has more ranks than tiles or sequences.
        """
        problems = cls.even_problems(tp, dp, contract)
        if not 0 <= rank < tp * dp:
            problems.append(cls.problem("rank", "rank", f"0 to {tp * dp - 1} in layout {tp}x{dp}", rank))
        if problems:
            raise error_from(problems)
        tiles = contract.logprob.tile_bounds
        vocab = tuple((tiles[a][0], tiles[b - 1][1]) for a, b in even_bounds(len(tiles), tp))
        return cls(
            tp_rank=rank % tp,
            tp_degree=tp,
            dp_rank=rank // tp,
            dp_degree=dp,
            vocab_shard_bounds=vocab,
            sequence_shard_bounds=even_bounds(contract.geometry.num_sequences, dp),
        )

    @classmethod
    def even_problems(cls, tp: int, dp: int, contract: GRPOLossContract) -> list[Problem]:
        """Why this layout would leave a rank without a tile or a sequence; empty when it would not."""
        found = []
        for name, degree, count, items in (
            ("tp_degree", tp, contract.logprob.num_vocab_tiles, "vocabulary tiles"),
            ("dp_degree", dp, contract.geometry.num_sequences, "sequences"),
        ):
            if not 1 <= degree <= count:
                found.append(cls.problem("degree", name, f"1 to {count}, the number of {items}", degree))
        return found

    @property
    def vocab_shard(self) -> tuple[int, int]:
        """This rank's global columns."""
        return self.vocab_shard_bounds[self.tp_rank]

    @property
    def sequence_shard(self) -> tuple[int, int]:
        """This rank's global sequences."""
        return self.sequence_shard_bounds[self.dp_rank]

    @property
    def num_local_sequences(self) -> int:
        """Sequences this rank owns."""
        return self.sequence_shard[1] - self.sequence_shard[0]

    @property
    def num_local_columns(self) -> int:
        """Vocabulary columns this rank owns."""
        return self.vocab_shard[1] - self.vocab_shard[0]

    def mesh_content(self) -> dict[str, Any]:
        """What all ranks of a layout share."""
        return self.model_dump(mode="json", exclude={"tp_rank", "dp_rank", "cp_rank"})

    def own_problems(self) -> list[Problem]:
        found = []
        if self.cp_world_size != 1:
            expected = "1 (context parallelism is resolved before the logits exist)"
            found.append(Problem("loss_contract.cp", "sharding.cp_world_size", expected, str(self.cp_world_size)))
        for axis in ("tp", "dp"):
            found += self._place_problems(axis)
        found += bounds_problems(self.vocab_shard_bounds, self.tp_degree, "vocab_shard_bounds", self.problem)
        found += bounds_problems(self.sequence_shard_bounds, self.dp_degree, "sequence_shard_bounds", self.problem)
        return found

    def _place_problems(self, axis: str) -> list[Problem]:
        degree, rank = getattr(self, f"{axis}_degree"), getattr(self, f"{axis}_rank")
        if degree < 1:
            return [self.problem("degree", f"{axis}_degree", "at least 1", degree)]
        if not 0 <= rank < degree:
            return [self.problem("rank", f"{axis}_rank", f"0 to {degree - 1}", rank)]
        return []

    def partition_problems(self, logprob: LogprobContract, geometry: BatchGeometry) -> list[Problem]:
        """Bounds that do not cover this vocabulary or these sequences, or that cut a tile."""
        return self.vocab_problems(logprob) + end_problem(
            self.sequence_shard_bounds, geometry.num_sequences, "sequence_shard_bounds", self.problem
        )

    def vocab_problems(self, logprob: LogprobContract) -> list[Problem]:
        """Bounds that do not cover this vocabulary, or that cut a tile."""
        found = end_problem(self.vocab_shard_bounds, logprob.padded_vocab_size, "vocab_shard_bounds", self.problem)
        width = logprob.tile_width
        for rank, (start, _) in enumerate(self.vocab_shard_bounds):
            if start % width:
                expected = f"a start on a tile border (a multiple of {width})"
                found.append(self.problem("tile", f"vocab_shard_bounds[{rank}]", expected, start))
        return found
