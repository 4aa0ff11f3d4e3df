"""How many virtual ranks a second, how much memory, and where the time goes.

    python benchmarks/virtual_ranks.py [--layouts 2x4,8x8,8x64,8x512] [--json]

Each layout runs in a fresh process on the batch `seed`, enlarged where it is too small: forward and backward of
every rank, validation and preflight on. Peak memory is the process's own, torch included.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PARTS = {
    "tile statistics": "tile_stats.py:tile_stats",
    "merge over tiles": "logprob.py:merge",
    "sequence totals": "sequence_totals.py:sequence_totals",
    "gradient": "gradient.py:logits_gradient",
    "validation": "loss_call.py:value_problems",
    "preflight summary": "preflight.py:_summary",
}


def main() -> None:
    """Print a row per layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default="2x4,8x8,8x64,8x512")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    rows = [in_fresh_process(layout) for layout in options.layouts.split(",")]
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in row["shares"].items())
        print(
            f"{row['layout']:>6}  {row['ranks']:5} ranks  {row['seconds']:7.2f} s"
            f"  {row['ranks_per_second']:6.0f} ranks/s  peak {row['peak_mb']:5.0f} MB  of a profiled run: {shares}"
        )


def in_fresh_process(layout: str) -> dict[str, Any]:
    """Peak memory is a process's own, so each layout has one."""
    command = [sys.executable, __file__, "--one", layout]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def measure(layout: str) -> dict[str, Any]:
    """One timed run, then one profiled run for the shares."""
    import torch

    from harness.inputs.enlarge import enlarged
    from harness.ranks.batches import built_in
    from harness.settings.batch_spec import BUILT_IN, contract_for
    from harness.settings.run_config import RunConfig
    from loss_ops.virtual_layout import run_layout

    torch.set_num_threads(1)
    tp, dp = map(int, layout.split("x"))
    spec, _ = enlarged(BUILT_IN["seed"], tp, dp)
    batch = built_in(spec, 0, contract_for(spec, RunConfig()))
    run_layout(batch, 1, 1)
    started = time.perf_counter()
    run_layout(batch, tp, dp)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    profile = cProfile.Profile()
    profile.runcall(run_layout, batch, tp, dp)
    return {
        "layout": layout,
        "ranks": tp * dp,
        "seconds": seconds,
        "ranks_per_second": tp * dp / seconds,
        "peak_mb": peak,
        "shares": shares_of(profile),
    }


def shares_of(profile: cProfile.Profile) -> dict[str, float]:
    """Cumulative share of the named parts."""
    stats = pstats.Stats(profile)
    total = stats.total_tt  # type: ignore[attr-defined]
    found = dict.fromkeys(PARTS, 0.0)
    for (file, _, name), (_, _, _, cumulative, _) in stats.stats.items():  # type: ignore[attr-defined]
        for part, place in PARTS.items():
            if place == f"{Path(file).name}:{name}":
                found[part] = cumulative / total
    return found


if __name__ == "__main__":
    main()
