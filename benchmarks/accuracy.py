"""Errors against float64: log-probabilities and gradient of the Triton op, the native op and plain PyTorch.

    python -m benchmarks.accuracy [--configs "2,8,32,32768;2,8,32,131072"] [--dtype bfloat16] [--json]

The log-probability's error is divided by max(1, |logp|), the gradient's by its largest element.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.dense_batch import DenseBatch, eager_loss
from benchmarks.report import options_for
from benchmarks.timing import device_or_reason
from grpo_contract import GRPOLossContract, ShardingSpec
from loss_ops.gather import Program
from loss_ops.loss_call import LossCall
from loss_ops.loss_program import LossState, gradient_of, loss_program
from loss_ops.real_ranks import RealRanks
from loss_ops.stages import NATIVE_STAGES, Stages
from loss_ops.triton_stages import TRITON_STAGES


def main() -> None:
    """Print one line per config and op."""
    options = options_for(__doc__, "2,8,32,32768;2,8,32,50257;2,8,32,131072")
    reason = device_or_reason()
    if reason is not None:
        raise SystemExit(f"accuracy: skipped, {reason}")
    for config in options.configs:
        batch = DenseBatch.random(*config, options.dtype)
        exact = batch.policy_logits.double().log_softmax(-1).gather(-1, batch.action_ids[..., None])[..., 0]
        gradient, share = exact_gradient(batch), {}
        print(f"P x S x L x V = {config}, {options.dtype}, largest |logp| {exact.abs().max():.2f}")
        for name, (logp, found) in {
            "triton": op_outcome(batch, options.dtype, TRITON_STAGES),
            "native": op_outcome(batch, options.dtype, NATIVE_STAGES),
            "eager": eager_outcome(batch),
        }.items():
            logp_error = ((logp.double() - exact).abs() / exact.abs().clamp_min(1.0)).max().item()
            error = ((found.double() - gradient).abs().max() / gradient.abs().max()).item()
            share[name] = (found != 0).float().mean().item()
            print(f"  {name:8s} logp {logp_error:.2e}   gradient {error:.2e}   non-zero share {share[name]:.4f}")


def exact_gradient(batch: DenseBatch) -> Tensor:
    """float64 gradient by autograd."""
    wide = DenseBatch(
        batch.policy_logits.double().requires_grad_(), batch.ref_logits.double(), batch.action_ids,
        batch.old_logps.double(), batch.rewards.double(), batch.completion_mask, batch.samples,
    )  # fmt: skip
    (gradient,) = torch.autograd.grad(eager_loss(wide, wide.policy_logits, upcast=False), wide.policy_logits)
    return gradient


def op_outcome(batch: DenseBatch, dtype: str, stages: Stages) -> tuple[Tensor, Tensor]:
    """Per-token logp and gradient of an op."""
    sequences, length, vocab = batch.policy_logits.shape
    contract = GRPOLossContract.for_batch(
        num_sequences=sequences, padded_seq_len=length, vocab_size=vocab, samples_per_prompt=batch.samples,
        dtype=dtype,
    )  # fmt: skip
    place = ShardingSpec.even(1, 1, contract=contract)
    policy, reference, ids, old, rewards, mask = batch.arguments()
    seen: dict[str, Tensor] = {}
    inputs = LossCall(policy, ids, old, rewards, contract, place, mask, reference).inputs()
    program: Program[LossState] = loss_program(inputs, stages, observe=seen.__setitem__)
    state = RealRanks().run(program)
    return seen["logp"], gradient_of(inputs, state, stages).view(policy.shape)


def eager_outcome(batch: DenseBatch) -> tuple[Tensor, Tensor]:
    """The same from plain PyTorch."""
    leaf = batch.policy_logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(eager_loss(batch, leaf), leaf)
    logp = leaf.detach().float().log_softmax(-1).gather(-1, batch.action_ids[..., None])[..., 0]
    return logp, gradient


if __name__ == "__main__":
    main()
