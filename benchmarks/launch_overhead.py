"""What verifying costs over starting ranks at all: the whole command against a bare torchrun launch.

The floor is a torchrun of as many ranks that import torch, join gloo and leave. Both are run in turn, the
median of each is taken.

    python benchmarks/launch_overhead.py [--repeats 3] [--json] [-- --tp 2 --dp 2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BARE = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.destroy_process_group()\n"


def main() -> None:
    """Print both medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("arguments", nargs="*", help="arguments of grpo-verify")
    options = parser.parse_args()
    verify = [sys.executable, "-m", "harness.cli", *(options.arguments or ["--tp", "2", "--dp", "2"]), "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(BARE)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        bare = [*launcher, "--nproc-per-node", str(options.ranks), str(script)]
        seconds: dict[str, list[float]] = {"bare torchrun": [], "grpo-verify": []}
        for _ in range(options.repeats):
            seconds["bare torchrun"].append(timed(bare))
            seconds["grpo-verify"].append(timed(verify))
    show(seconds, as_json=options.json)


def timed(command: list[str]) -> float:
    """Wall-clock seconds of one command, which must succeed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def show(seconds: dict[str, list[float]], *, as_json: bool) -> None:
    """Print the samples and the ratio of the medians."""
    medians = {name: statistics.median(samples) for name, samples in seconds.items()}
    ratio = medians["grpo-verify"] / medians["bare torchrun"]
    if as_json:
        print(json.dumps({"seconds": seconds, "medians": medians, "ratio": ratio, "cores": os.cpu_count()}))
        return
    for name, samples in seconds.items():
        print(f"{name:15} median {medians[name]:6.2f} s   min {min(samples):6.2f}   max {max(samples):6.2f}")
    print(f"ratio {ratio:.2f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
