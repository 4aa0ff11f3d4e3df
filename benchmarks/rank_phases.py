"""Where a rank's time goes at one layout: the agreement, the gathers, and the whole loss call, on real ranks.

    torchrun --standalone --nproc-per-node 4 -m benchmarks.rank_phases --tp 2 --dp 2 [--device cuda]
        [--config 4,8,256,32768] [--dtype bfloat16] [--backend triton] [--repeats 20] [--ranks-per-device 1]

Rank 0 prints one line of JSON, times in milliseconds on the slowest rank, all ranks starting each call together;
medians of `repeats` calls, but for `gathers`, which is a mean:

- `call`: forward and backward, validation off, ranks agreed once before;
- `waited_call`: the same, the device waited for around every collective, which is what `gathers` is a part of;
- `gathers`: the time of that call's collectives, waiting for other ranks included;
- `preflight`: what agreeing at every call adds to `call`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from grpo_contract import GRPOLossContract, ShardingSpec
from harness.ranks.meeting import collective_timeout
from harness.ranks.rank_groups import layout_groups
from loss_ops import kernel_registry

WARM_UP = 3


@dataclass
class Stopwatch:
    """Adds up the time spent in `dist.all_gather`, in seconds."""

    device: torch.device
    seconds: float = 0.0

    def around(self, gather: Callable[..., Any]) -> Callable[..., Any]:
        """`gather`, timed."""

        def timed(*arguments: Any, **options: Any) -> Any:
            started = now(self.device)
            done = gather(*arguments, **options)
            self.seconds += now(self.device) - started
            return done

        return timed


def now(device: torch.device) -> float:
    """The clock once the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    """Join, measure, print on rank 0, leave."""
    options = parsed()
    if "LOCAL_RANK" not in os.environ:
        sys.exit("rank_phases: expected to be started by torchrun, see --help; got no LOCAL_RANK")
    index = int(os.environ["LOCAL_RANK"]) // options.ranks_per_device
    device = torch.device(options.device, index if options.device == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Bound to its device: a barrier would take the one that has the rank's number.
    bound = {"device_id": device} if device.type == "cuda" else {}
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", **bound)
    found = measured(options, device)
    slowest = torch.tensor(list(found.values()), device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        times = dict(zip(found, slowest.tolist(), strict=True))
        facts = {"tp": options.tp, "dp": options.dp, "config": options.config, "dtype": options.dtype}
        facts |= {"backend": options.backend, "ranks_per_device": options.ranks_per_device}
        print(json.dumps({**facts, **times}), flush=True)
    dist.destroy_process_group()


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--dp", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--config", default="4,8,256,32768", help="prompts,samples,slots,vocabulary")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--ranks-per-device", type=int, default=1)
    return parser.parse_args()


def measured(options: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """This rank's medians."""
    call = loss_call(options, device)
    agreed = {"validate": "off", "preflight": "once"}
    plain = median_ms(lambda: call(**agreed), options.repeats, device)
    always = median_ms(lambda: call(validate="off", preflight="always"), options.repeats, device)
    watch, gather = Stopwatch(device), dist.all_gather
    dist.all_gather = watch.around(gather)
    waited = median_ms(lambda: call(**agreed), options.repeats, device)
    calls = WARM_UP + options.repeats
    dist.all_gather = gather
    gathers = watch.seconds * 1e3 / calls
    return {"call": plain, "waited_call": waited, "gathers": gathers, "preflight": always - plain}


def loss_call(options: argparse.Namespace, device: torch.device) -> Callable[..., None]:
    """Forward and backward of this rank's shard of random logits."""
    prompts, samples, length, vocab = map(int, options.config.split(","))
    contract = GRPOLossContract.for_batch(
        num_sequences=prompts * samples, padded_seq_len=length, vocab_size=vocab, samples_per_prompt=samples,
        dtype=options.dtype,
    )  # fmt: skip
    rank, layout = dist.get_rank(), (options.tp, options.dp)
    place = ShardingSpec.even(*layout, rank=rank, contract=contract)
    groups = layout_groups([layout], rank, collective_timeout(60.0))[layout]
    op = kernel_registry.get_loss_op(contract, device=device.type, backend=options.backend).op
    first, last = place.sequence_shard
    columns = place.vocab_shard[1] - place.vocab_shard[0]
    draw = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=draw)

    rewards, old = drawn(prompts * samples), drawn(prompts * samples, length) - 10.0
    ids = torch.randint(0, vocab, (prompts * samples, length), device=device, generator=draw)
    policy, reference = (drawn(last - first, length, columns).to(getattr(torch, options.dtype)) for _ in range(2))
    policy.requires_grad_()
    mask = torch.ones_like(ids[first:last], dtype=torch.bool)

    def call(**checks: str) -> None:
        result = op.apply(
            policy, ids[first:last], old[first:last], rewards[first:last], contract=contract, sharding=place,
            completion_mask=mask, ref_local_logits=reference, tp_group=groups.tp, dp_group=groups.dp, **checks,
        )  # fmt: skip
        torch.autograd.grad(result.loss, policy)

    return call


def median_ms(run: Callable[[], None], repeats: int, device: torch.device) -> float:
    """Median milliseconds of `run`, ranks starting together."""
    samples = []
    for number in range(WARM_UP + repeats):
        dist.barrier()
        started = now(device)
        run()
        if number >= WARM_UP:
            samples.append((now(device) - started) * 1e3)
    return statistics.median(samples)


if __name__ == "__main__":
    main()
