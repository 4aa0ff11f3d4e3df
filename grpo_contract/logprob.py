"""The logprob contract: vocabulary, its fixed tiles, and the dtype of the logits."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from grpo_contract.errors import Problem
from grpo_contract.model import ContractModel
from grpo_contract.reduction import DeterminismScope

WIDEST_DEFAULT_TILE = 8192


class LogitsDtype(StrEnum):
    """The dtype of policy and reference logits; all arithmetic is float32."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class LogprobContract(ContractModel):
    """How the vocabulary dim is reduced: tile by tile, whatever rank owns the tiles.

    real_vocab_size columns take part; columns from there to padded_vocab_size are padding and never count.
    num_tokens, when given, is the number of token slots the rank owns and is checked against its sharding.
    """

    section: ClassVar[str] = "logprob"
    error_code: ClassVar[str] = "logprob_contract"

    dtype: LogitsDtype = LogitsDtype.FLOAT32
    real_vocab_size: int
    padded_vocab_size: int
    num_vocab_tiles: int
    num_tokens: int | None = None
    determinism_scope: DeterminismScope = DeterminismScope.CROSS_LAYOUT_BITWISE

    @property
    def tile_width(self) -> int:
        """Columns of a tile; the last tile may be shorter."""
        return tile_width(self.padded_vocab_size, self.num_vocab_tiles)

    @property
    def tile_bounds(self) -> tuple[tuple[int, int], ...]:
        """Global column range of each tile."""
        width, end = self.tile_width, self.padded_vocab_size
        return tuple((start, min(start + width, end)) for start in range(0, end, width))

    def own_problems(self) -> list[Problem]:
        found = [
            *self.range_problems("real_vocab_size", least=1),
            *self.range_problems("num_vocab_tiles", least=1),
        ]
        if self.padded_vocab_size < self.real_vocab_size:
            expected = f"at least real_vocab_size {self.real_vocab_size}"
            found.append(self.problem("range", "padded_vocab_size", expected, self.padded_vocab_size))
        if self.num_tokens is not None:
            found += self.range_problems("num_tokens", least=1)
        return found or self._tile_problems()

    def _tile_problems(self) -> list[Problem]:
        filled = len(self.tile_bounds)
        if filled == self.num_vocab_tiles:
            return []
        columns = self.padded_vocab_size
        expected = f"a number of tiles that leaves none empty over {columns} columns, such as {filled}"
        return [self.problem("tiles", "num_vocab_tiles", expected, self.num_vocab_tiles)]


def tile_width(padded_vocab_size: int, num_vocab_tiles: int) -> int:
    """ceil(columns / tiles), rounded up to a power of two where that leaves no tile empty.

    A power of two keeps tile starts aligned for vector loads and makes the summation tree of a tile full.
    """
    even = -(-padded_vocab_size // num_vocab_tiles)
    power = 1 << (even - 1).bit_length()
    return power if (num_vocab_tiles - 1) * power < padded_vocab_size else even


def default_num_vocab_tiles(padded_vocab_size: int) -> int:
    """At least 16 tiles where the vocabulary allows, each a power of two of at most 8192 columns."""
    width = min(WIDEST_DEFAULT_TILE, 1 << max(0, (padded_vocab_size // 16).bit_length() - 1))
    return -(-padded_vocab_size // width)
