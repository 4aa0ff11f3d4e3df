"""The Triton op beside liger-kernel's Triton GRPO loss on the same work, where that is installed.

    python -m benchmarks.peers [--configs "4,8,256,131072"] [--dtype float16] [--json]

liger-kernel takes the reference's log-probabilities: the pass that computes them from the reference's logits is
counted, as is the one here. Its logits have one slot more per sequence, which it does not read. Its
gradient in place is written by the backward, over the logits.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.dense_batch import DenseBatch, LayerOutput
from benchmarks.grpo_loss import backward_cases, forward_cases
from benchmarks.report import Report, options_for
from benchmarks.timing import measure


def main() -> None:
    """Time every config."""
    options = options_for(__doc__, "4,8,256,32768;4,8,256,131072")
    report = Report.start("peers", options)
    reason = None if importlib.util.find_spec("liger_kernel") else "liger-kernel is not installed"
    if reason is not None:
        report.note(f"liger-kernel: skipped, {reason}")
    for config in options.configs:
        one_config(report, config, options, with_liger=reason is None)
    report.finish()


def one_config(report: Report, config: tuple[int, ...], options: argparse.Namespace, *, with_liger: bool) -> None:
    """All cases of one shape."""
    batch = DenseBatch.random(*config, options.dtype)
    report.section("P x S x L x V = " + " x ".join(map(str, config)), dtype=options.dtype)
    cases = {
        name: case for name, case in (forward_cases(batch) | backward_cases(batch)).items() if "triton" in name
    }
    if with_liger:
        cases |= liger_cases(batch)
    timings = measure(cases, repeats=options.repeats)
    for name, timing in timings.items():
        report.row(name, timing, batch.unit_bytes * (2 if name.endswith("forward") else 4))
    if with_liger:
        for name in ("forward", "forward+backward", "forward+backward, one kernel", "forward+backward, in place"):
            other = f"liger {name.removesuffix(', one kernel')}"
            ratio = timings[other].median / timings[f"triton {name}"].median
            report.note(f"{name}: liger {ratio:.2f}x the time of triton")


def liger_cases(batch: DenseBatch) -> dict[str, Callable[[], Any]]:
    """The same loss (masked mean over all tokens, temperature 1, k3) from liger-kernel."""
    from liger_kernel.transformers.grpo_loss import fused_selective_log_softmax, triton_grpo_loss

    policy, reference = (_one_slot_more(each) for each in (batch.policy_logits, batch.ref_logits))
    weight = torch.zeros(1, device="cuda", requires_grad=True)
    mask = batch.completion_mask.int()
    grouped = batch.rewards.view(-1, batch.samples)
    advantages = (grouped - grouped.mean(1, keepdim=True)) / grouped.std(1, keepdim=True, unbiased=False)
    advantages = advantages.reshape(-1).contiguous()

    def loss(logits: torch.Tensor, *, inplace: bool) -> torch.Tensor:
        ref_logp = fused_selective_log_softmax(reference, batch.action_ids, 1.0, mask)
        reduced, _ = triton_grpo_loss(
            logits, batch.old_logps, ref_logp, batch.action_ids, advantages, mask, temperature=1.0, beta=0.04,
            eps_low=0.2, eps_high=0.2, inplace=inplace, loss_type="bnpo", reduce=True,
        )  # fmt: skip
        return reduced

    def forward() -> None:
        with torch.no_grad():
            loss(policy, inplace=False)

    def both(*, inplace: bool) -> None:
        loss(LayerOutput.apply(policy, weight), inplace=inplace).backward()

    return {
        "liger forward": forward,
        "liger forward+backward": lambda: both(inplace=False),
        "liger forward+backward, in place": lambda: both(inplace=True),
    }


def _one_slot_more(logits: torch.Tensor) -> torch.Tensor:
    sequences, length, vocab = logits.shape
    out = logits.new_zeros(sequences, length + 1, vocab)
    out[:, :length] = logits
    return out


if __name__ == "__main__":
    main()
