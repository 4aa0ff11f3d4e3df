"""Combining gradients over ranks: the fixed order against all_reduce, by parameters and ranks.

Each rank holds the sum of its blocks as one tensor (an aligned split); what is timed is the exchange of shares,
the adding up and the gather, against one all_reduce of the same tensor. Tokens a second are what an update of
--tokens tokens a rank would leave if nothing but this took time. The script starts its ranks itself.

    python benchmarks/training_combine.py [--ranks 2 4] [--parameters 1e5 1e6 1e7] [--device cpu|cuda]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from grpo_contract import even_bounds
from harness.workloads.combine import Combine, GradientSum
from harness.workloads.ranks import Place, RealDriver


def main() -> None:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--parameters", type=float, nargs="+", default=[1e5, 1e6, 1e7])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    if "RANK" in os.environ:
        _rank(options)
        return
    print(
        "ranks  parameters  fixed order ms  all_reduce ms  ratio  fixed tokens/s  all_reduce tokens/s", flush=True
    )
    for ranks in options.ranks:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [*launcher, *sys.argv]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)


def _rank(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device(f"cuda:{rank}" if options.device == "cuda" else "cpu")
    if options.device == "cuda":
        torch.cuda.set_device(device)
    for count in map(int, options.parameters):
        gradient = torch.randn(count, device=device)
        fixed, reduced = (
            _timed(lambda combine=combine, gradient=gradient: _combine(combine, gradient, rank, ranks), options)
            for combine in Combine
        )
        if rank == 0:
            total = options.tokens * ranks
            speeds = f"{total / fixed:14,.0f}  {total / reduced:19,.0f}"
            times = f"{fixed * 1e3:14.2f}  {reduced * 1e3:13.2f}  {fixed / reduced:5.2f}"
            print(f"{ranks:5d}  {count:10,}  {times}  {speeds}", flush=True)
    dist.destroy_process_group()


def _combine(combine: Combine, gradient: torch.Tensor, rank: int, ranks: int) -> None:
    held = GradientSum(combine, even_bounds(ranks, ranks), Place(rank, ranks))
    held.add_leaf(rank, gradient)
    RealDriver(dist.group.WORLD).run(held.combined())


def _timed(work: Callable[[], None], options: argparse.Namespace) -> float:
    """Median seconds on this rank, after one run to warm up; a barrier before each."""
    seconds = []
    for _ in range(options.repeats + 1):
        dist.barrier()
        started = time.perf_counter()
        work()
        if options.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
