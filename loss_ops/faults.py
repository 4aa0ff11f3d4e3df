"""The catalogue of planted faults, readable without torch; `loss_ops.controls` holds what they do.

A layout fault equals the good op bit for bit at 1x1 and drifts at its layout; an arithmetic fault is compared
with the good op itself; a disagreement must be refused by preflight; a timing fault is compared with itself, run
again under another timing, and so runs under --stress alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["layout", "arithmetic", "disagreement", "timing"]


@dataclass(frozen=True)
class Fault:
    """One planted fault: the smallest layout (tp, dp) that can show it, and the quantities of which one must.

    `pattern` is what the comparison must say of it, where it must say more than that bits differ; {tp} and {dp}
    stand for the degrees. `must_say` is the field that a refusal must name. From `real_ranks_from` ranks on an
    axis the fault is the order of a real collective, which virtual ranks lack.
    """

    name: str
    layout: tuple[int, int]
    quantities: tuple[str, ...]
    about: str
    kind: FaultKind = "layout"
    pattern: str | None = None
    real_ranks_from: int | None = None
    must_say: str | None = None

    def pattern_at(self, layout: tuple[int, int]) -> str | None:
        """The pattern with the degrees of `layout` (tp, dp) in their places."""
        return None if self.pattern is None else self.pattern.format(tp=layout[0], dp=layout[1])


FAULTS: tuple[Fault, ...] = (
    Fault(
        "token_sum_regrouped_per_rank",
        (1, 2),
        ("per_sequence_policy",),
        "the token sum of a sequence is cut into as many blocks as there are DP ranks",
    ),
    Fault(
        "row_sum_by_local_row_count",
        (1, 2),
        ("per_sequence_policy",),
        "the tree of the token sum depends on how many sequences the rank holds",
    ),
    Fault(
        "sequence_totals_all_reduced",
        (1, 2),
        ("loss", "policy_loss"),
        "sequence totals are added per rank and all_reduced, not gathered in sequence order",
        real_ranks_from=3,
    ),
    Fault(
        "tile_sums_all_reduced",
        (2, 1),
        ("per_sequence_policy",),
        "exponential sums of tiles are added per rank and all_reduced, not gathered in tile order",
        real_ranks_from=3,
    ),
    Fault(
        "tiles_doubled_under_tp",
        (2, 1),
        ("per_sequence_policy",),
        "with more than one TP rank two vocabulary tiles are merged into one",
    ),
    Fault(
        "rank_local_normalizer",
        (1, 2),
        ("loss", "grad_policy_logits"),
        "the token count in the divisor is the rank's own, not the batch's",
    ),
    Fault(
        "rank_local_advantages",
        (1, 2),
        ("advantages", "per_sequence_policy"),
        "rewards are normalized over the part of a group that the rank holds",
    ),
    Fault(
        "sequences_swapped_at_assembly",
        (1, 2),
        ("per_sequence_policy",),
        "gathered shards are concatenated in reverse DP-rank order",
    ),
    Fault(
        "advantages_off_by_one_rank",
        (1, 2),
        ("per_sequence_policy",),
        "a rank slices the advantages of its neighbour's sequences",
    ),
    Fault(
        "bf16_token_sum",
        (1, 1),
        ("per_sequence_policy",),
        "token terms are accumulated in bfloat16",
        kind="arithmetic",
    ),
    Fault(
        "gradient_zero_off_owner",
        (2, 1),
        ("grad_policy_logits",),
        "vocabulary shards that do not hold the taken token get no gradient",
    ),
    Fault(
        "gradient_scaled_by_dp",
        (1, 2),
        ("grad_policy_logits",),
        "the gradient is multiplied by the DP degree",
        pattern="constant factor {dp}",
    ),
    Fault(
        "totals_added_in_ring_order",
        (1, 3),
        ("loss", "policy_loss"),
        "from three DP ranks on, each rank adds the ranks' sums starting with its own",
    ),
    Fault(
        "tiles_joined_in_reverse",
        (3, 1),
        ("per_sequence_policy",),
        "tile statistics are joined in reverse TP-rank order, which two ranks cannot show",
    ),
    Fault(
        "tile_sums_sent_as_bf16",
        (4, 1),
        ("per_sequence_policy",),
        "from four TP ranks on, tile sums travel in bfloat16",
    ),
    Fault(
        "totals_added_in_pairs",
        (1, 8),
        ("loss", "policy_loss"),
        "from eight DP ranks on, the ranks' sums are added in neighbouring pairs",
    ),
    Fault(
        "beta_differs_on_one_tp_rank",
        (2, 1),
        (),
        "the last TP rank holds a contract with another beta",
        kind="disagreement",
        must_say="objective.beta",
    ),
    Fault(
        "beta_differs_on_one_dp_rank",
        (1, 2),
        (),
        "the ranks of the last sequence shard hold a contract with another beta, and agree among themselves",
        kind="disagreement",
        must_say="objective.beta",
    ),
    Fault(
        "token_sum_in_arrival_order",
        (1, 1),
        ("per_sequence_policy", "per_sequence_kl"),
        "the slots of a sequence are added by threads, in the order in which they finish",
        kind="timing",
    ),
)
