"""The sharded op beside the dense op: what the promise costs at TP 1, and one rank's work at larger degrees.

    python -m benchmarks.sharded [--configs "4,8,256,131072"] [--dtype float16] [--json]

A rank of a larger degree answers its own gathers with copies of what it sends: the work of one rank without the
time of a network.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.dense_batch import DenseBatch, LayerOutput
from benchmarks.report import Report, options_for
from benchmarks.timing import measure
from grpo_contract import GRPOLossContract, ShardingSpec
from loss_ops import kernel_registry
from loss_ops.gather import Program
from loss_ops.loss_call import LossCall
from loss_ops.loss_program import gradient_of, loss_program


def main() -> None:
    """Time every config."""
    options = options_for(__doc__, "4,8,256,32768;4,8,256,131072")
    report = Report.start("sharded", options)
    for config in options.configs:
        one_config(report, config, options)
    report.finish()


def one_config(report: Report, config: tuple[int, ...], options: argparse.Namespace) -> None:
    """Dense against sharded at 1x1, then shards of TP degree 2, 4 and 8."""
    batch = DenseBatch.random(*config, options.dtype)
    contract = contract_of(batch, options.dtype)
    report.section("P x S x L x V = " + " x ".join(map(str, config)), dtype=options.dtype)
    timings = measure(layout_1x1(batch, contract), repeats=options.repeats)
    for name, timing in timings.items():
        report.row(name, timing, batch.unit_bytes * (4 if "backward" in name else 2))
    for kind in ("forward", "forward+backward"):
        dense = timings[f"dense {kind}"]
        for how in ("unchecked", "checked"):
            other = timings[f"sharded {kind}, {how}"]
            ratios = f"device {other.median / dense.median:.3f}x, loop {other.loop / dense.loop:.3f}x"
            report.note(f"{kind}, {how}: {ratios} the dense op")
    shards = {f"rank of TP {tp}, forward+backward": _shard(batch, contract, tp) for tp in (1, 2, 4, 8)}
    for name, timing in measure(shards, repeats=options.repeats).items():
        report.row(name, timing, batch.unit_bytes * 4 / int(name.split()[3].rstrip(",")))


def contract_of(batch: DenseBatch, dtype: str) -> GRPOLossContract:
    """The contract the dense op would make."""
    sequences, length, vocab = batch.policy_logits.shape
    return GRPOLossContract.for_batch(
        num_sequences=sequences,
        padded_seq_len=length,
        vocab_size=vocab,
        samples_per_prompt=batch.samples,
        dtype=dtype,
    )


def layout_1x1(batch: DenseBatch, contract: GRPOLossContract) -> dict[str, Callable[[], Any]]:
    """The dense op, and the sharded one without and with its checks."""
    dense = kernel_registry.get_op("grpo_loss", backend="triton", device="cuda")
    sharded = kernel_registry.get_loss_op(contract, device="cuda", backend="triton").op
    place = ShardingSpec.even(1, 1, contract=contract)
    weight = torch.zeros(1, device="cuda", requires_grad=True)

    def run_dense(logits: Tensor) -> Any:
        return dense(*batch.arguments(logits), samples_per_prompt=batch.samples, validate="off")

    def run_sharded(logits: Tensor, **checks: str) -> Any:
        policy, reference, ids, old, rewards, mask = batch.arguments(logits)
        return sharded.apply(
            policy, ids, old, rewards, contract=contract, sharding=place, completion_mask=mask,
            ref_local_logits=reference, **checks,
        )  # fmt: skip

    off, on = {"validate": "off", "preflight": "once"}, {"validate": "full", "preflight": "always"}
    kinds: dict[str, Callable[[Tensor], Any]] = {
        "dense {}": run_dense,
        "sharded {}, unchecked": lambda logits: run_sharded(logits, **off),
        "sharded {}, checked": lambda logits: run_sharded(logits, **on),
    }

    def forward(run: Callable[[Tensor], Any]) -> None:
        with torch.no_grad():
            run(batch.policy_logits)

    def both(run: Callable[[Tensor], Any]) -> None:
        run(LayerOutput.apply(batch.policy_logits, weight)).loss.backward()

    cases: dict[str, Callable[[], Any]] = {}
    for name, run in kinds.items():
        cases[name.format("forward")] = lambda run=run: forward(run)
        cases[name.format("forward+backward")] = lambda run=run: both(run)
    return cases


def _shard(batch: DenseBatch, contract: GRPOLossContract, tp: int) -> Callable[[], Any]:
    """Forward and gradient of TP rank 0 on its columns, held in memory of their own."""
    place = ShardingSpec.even(tp, 1, contract=contract)
    columns = slice(*place.vocab_shard)
    op = kernel_registry.get_loss_op(contract, device="cuda", backend="triton").op
    policy, reference = (each[..., columns].contiguous() for each in (batch.policy_logits, batch.ref_logits))
    call = LossCall(
        policy, batch.action_ids, batch.old_logps, batch.rewards, contract, place, batch.completion_mask,
        reference, (tp, 1),
    )  # fmt: skip

    def run() -> None:
        with torch.no_grad():
            inputs = call.inputs()
            state = _echo(loss_program(inputs, op.stages))
            gradient_of(inputs, state, op.stages)

    return run


def _echo(program: Program[Any]) -> Any:
    """Drive a program whose every gather is answered by copies of its own tensor."""
    try:
        request = next(program)
        while True:
            tensor, sizes = request.tensor, getattr(request, "sizes", (1,))
            request = program.send([tensor[:size] for size in sizes])
    except StopIteration as stop:
        return stop.value


if __name__ == "__main__":
    main()
