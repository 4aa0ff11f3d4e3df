"""In how many seeds does a regrouped token sum move the per-sequence vector, and in how many the scalar loss?

    python benchmarks/mutation_score.py [--seeds 12] [--json]

Virtual ranks on the batch `seed`: the planted fault `token_sum_regrouped_per_rank` at 1x2 and 1x4, against its own
1x1. A report that compares the scalar alone sees the second number.
"""

from __future__ import annotations

import argparse
import json

import torch

from harness.ranks.batches import built_in
from harness.settings.batch_spec import BUILT_IN, contract_for
from harness.settings.run_config import RunConfig
from loss_ops.controls import faulty_op
from loss_ops.virtual_layout import run_layout

WATCHED = ("per_sequence_policy", "per_sequence_kl", "policy_loss", "kl", "loss")


def main() -> None:
    """Print one row per layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {f"1x{dp}": moved(dp, options.seeds) for dp in (2, 4)}
    if options.json:
        print(json.dumps({"seeds": options.seeds, "moved": rows}))
        return
    for layout, counts in rows.items():
        print(f"{layout}  " + "  ".join(f"{name} {count} of {options.seeds}" for name, count in counts.items()))


def moved(dp: int, seeds: int) -> dict[str, int]:
    """Seeds in which each quantity's bits differ from 1x1."""
    spec, op = BUILT_IN["seed"], faulty_op("token_sum_regrouped_per_rank")
    counts = dict.fromkeys(WATCHED, 0)
    for seed in range(seeds):
        batch = built_in(spec, seed, contract_for(spec, RunConfig()))
        expected, got = (run_layout(batch, 1, degree, op=op).quantities() for degree in (1, dp))
        for name in WATCHED:
            counts[name] += not torch.equal(expected[name].view(torch.int32), got[name].view(torch.int32))
    return counts


if __name__ == "__main__":
    main()
