"""Train the tiny policy under your own torchrun, on any number of ranks, and print the digest of its parameters.

    torchrun --nproc-per-node 4 -m examples.data_parallel [--updates 100] [--combine fixed_order|all_reduce]

The digest is the same at every number of ranks, unless gradients are combined by all_reduce.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
import torch.distributed as dist

from harness.workloads.combine import Combine
from harness.workloads.ranks import Place, RealDriver
from harness.workloads.tiny_policy import start_table, success
from harness.workloads.tiny_training import TinyWorkload
from harness.workloads.training import Recipe, Update, train
from harness.workloads.trajectory import digests_of, parameter_digest, state_of
from harness.workloads.uniform_stream import Mt19937Stream


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as one rank of the group that torchrun started; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--combine", type=Combine, default=Combine.FIXED_ORDER, choices=list(Combine))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    device = torch.device(f"cuda:{dist.get_node_local_rank(0)}" if options.device == "cuda" else "cpu")
    place = Place(dist.get_rank(), dist.get_world_size())
    workload = TinyWorkload(Mt19937Stream(options.seed), table=start_table(device))

    def on_update(update: Update) -> None:
        if place.rank == 0 and (update.number % 10 == 0 or update.number == options.updates):
            digest = parameter_digest(digests_of(state_of(update, workload.parameters())))
            print(f"update {update.number:3d}  success {float(success(workload.table)):.6f}  sha256 {digest}")

    recipe = Recipe(combine=options.combine)
    RealDriver(dist.group.WORLD).run(train(workload, range(1, options.updates + 1), place, recipe, on_update))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
