"""What one rank saw of one compared quantity; plain data for JSON, no torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from harness.comparing.tally import Tally


class Drift(BaseModel):
    """A comparison on one rank; `mismatched` 0 means equal bits.

    `nonzero` and `non_finite` count elements of the baseline: finite ones that are not zero, NaN and infinities.
    `first` is the first differing element in global coordinates, one per dim. `shard` is the origin of this
    rank's part, and empty where every rank holds the whole. `tally` counts where and how the elements differ.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    name: str
    elements: int
    nonzero: int
    non_finite: int = 0
    floating: bool = True
    by_sequence: bool = True
    shard: tuple[int, ...] = ()
    mismatched: int = 0
    max_ulp: int = 0
    max_abs: float = 0.0
    first: tuple[int, ...] | None = None
    expected: str = ""
    got: str = ""
    expected_bits: str = ""
    got_bits: str = ""
    sequences: tuple[int, ...] = ()
    tally: Tally | None = None
