"""The dense GRPO loss: plain PyTorch, the native op and the Triton op, forward and forward+backward.

    python -m benchmarks.grpo_loss [--configs "4,8,256,32768;4,8,256,131072"] [--dtype float16] [--json]

Floors: the forward reads both sets of logits (2 units); forward+backward reads both, reads the policy's again and
writes the gradient (4 units, or 3 where the policy's logits could stay on the chip in between).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.dense_batch import DenseBatch, LayerOutput, eager_loss
from benchmarks.report import Report, options_for
from benchmarks.timing import measure
from loss_ops import kernel_registry


def main() -> None:
    """Time every config."""
    options = options_for(__doc__, "4,8,256,32768;4,8,256,50257;4,8,256,131072")
    report = Report.start("grpo_loss", options)
    for config in options.configs:
        one_config(report, config, options)
    report.finish()


def one_config(report: Report, config: tuple[int, ...], options: argparse.Namespace) -> None:
    """All cases of one shape."""
    batch = DenseBatch.random(*config, options.dtype)
    unit = batch.unit_bytes
    report.section("P x S x L x V = " + " x ".join(map(str, config)), dtype=options.dtype, unit_MB=unit / 2**20)
    cases = {
        name: case for name, case in (forward_cases(batch) | backward_cases(batch)).items() if options.only in name
    }
    slow = {name: case for name, case in cases.items() if name.startswith(("eager", "native"))}
    quick = {name: case for name, case in cases.items() if name not in slow}
    timings = measure(quick, repeats=options.repeats) | (measure(slow, repeats=5, warmup=1) if slow else {})
    for name, timing in timings.items():
        report.row(name, timing, unit * (2 if name.endswith("forward") else 4))
    for name in () if options.only else ("forward", "forward+backward"):
        best = timings[f"triton {name}"].median
        told = ", ".join(
            f"{other} {timings[f'{other} {name}'].median / best:.2f}x" for other in ("eager", "native")
        )
        report.note(f"{name}: {told} the time of triton")


def forward_cases(batch: DenseBatch) -> dict[str, Callable[[], Any]]:
    """Forward alone, nothing recorded for a backward."""
    ops = {name: kernel_registry.get_op("grpo_loss", backend=name, device="cuda") for name in ("native", "triton")}

    def run(name: str) -> None:
        with torch.no_grad():
            ops[name](*batch.arguments(), samples_per_prompt=batch.samples, validate="off")

    def eager() -> None:
        with torch.no_grad():
            eager_loss(batch, batch.policy_logits)

    return {
        "triton forward": lambda: run("triton"),
        "native forward": lambda: run("native"),
        "eager forward": eager,
    }


def backward_cases(batch: DenseBatch) -> dict[str, Callable[[], Any]]:
    """Forward and backward; logits are a layer's output, whose gradient the layer takes and drops."""
    ops = {name: kernel_registry.get_op("grpo_loss", backend=name, device="cuda") for name in ("native", "triton")}
    weight = torch.zeros(1, device="cuda", requires_grad=True)
    # In place the logits are replaced: a copy of its own, whose values drift from call to call.
    replaced = batch.policy_logits.clone()

    def run(name: str, **how: Any) -> None:
        buffer = replaced if how.get("inplace") else batch.policy_logits
        logits = LayerOutput.apply(buffer, weight)
        result = ops[name](*batch.arguments(logits), samples_per_prompt=batch.samples, validate="off", **how)
        result.loss.backward()

    def eager() -> None:
        eager_loss(batch, LayerOutput.apply(batch.policy_logits, weight)).backward()

    return {
        "triton forward+backward": lambda: run("triton"),
        "triton forward+backward, one kernel": lambda: run("triton", gradient="forward"),
        "triton forward+backward, in place": lambda: run("triton", inplace=True),
        "native forward+backward": lambda: run("native"),
        "eager forward+backward": eager,
    }


if __name__ == "__main__":
    main()
