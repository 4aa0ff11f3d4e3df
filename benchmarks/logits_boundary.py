"""The logits boundary: log-probabilities, loss and logits' gradient as separate kernels, or fused, in place.

    python -m benchmarks.logits_boundary [--configs "1,16,64,32768;1,16,64,131072"] [--dtype float32] [--json]

1024 tokens of the policy alone (beta 0, no reference), all active or ragged (sequence s has 1 + (5 s) mod L).
Floors: read, read again, write (3 units), rows of masked slots written only.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from benchmarks.dense_batch import DenseBatch, LayerOutput
from benchmarks.report import Report, options_for
from benchmarks.timing import measure
from loss_ops import kernel_registry


def main() -> None:
    """Time every config, full and ragged."""
    options = options_for(__doc__, "1,16,64,32768;1,16,64,131072", "float32")
    report = Report.start("logits_boundary", options)
    for config in options.configs:
        for ragged in (False, True):
            one_config(report, config, options, ragged=ragged)
    report.finish()


def one_config(report: Report, config: tuple[int, ...], options: argparse.Namespace, *, ragged: bool) -> None:
    """Separate against fused on one shape."""
    batch = DenseBatch.random(*config, options.dtype, ragged=ragged)
    op = kernel_registry.get_op("grpo_loss", backend="triton", device="cuda")
    weight = torch.zeros(1, device="cuda", requires_grad=True)
    replaced = batch.policy_logits.clone()

    def run(**how: Any) -> None:
        buffer = replaced if how.get("inplace") else batch.policy_logits
        policy, _, ids, old, rewards, mask = batch.arguments(LayerOutput.apply(buffer, weight))
        result = op(
            policy,
            None,
            ids,
            old,
            rewards,
            mask,
            beta=0.0,
            samples_per_prompt=batch.samples,
            validate="off",
            **how,
        )
        result.loss.backward()

    active = batch.completion_mask.float().mean().item()
    report.section(
        "P x S x L x V = " + " x ".join(map(str, config)),
        dtype=options.dtype,
        mask="ragged" if ragged else "full",
        active=f"{active:.3f}",
    )
    timings = measure(
        {
            "separate kernels": run,
            "fused": lambda: run(gradient="forward"),
            "fused, in place": lambda: run(inplace=True),
        },
        repeats=options.repeats,
    )
    for name, timing in timings.items():
        report.row(name, timing, batch.unit_bytes * (2 * active + 1))


if __name__ == "__main__":
    main()
