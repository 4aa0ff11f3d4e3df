"""Run in a process of its own under TRITON_INTERPRET=1: the kernels on the CPU against the float64 oracle.

Prints one line of JSON per case: the largest errors, and what differs in bits between paths and layouts.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from torch import Tensor

from grpo_contract import GRPOLossContract
from loss_ops.batch import GlobalBatch
from loss_ops.triton_loss import TritonDistributedGRPOLossOp, TritonGRPOLossOp
from loss_ops.triton_stages import TRITON_STAGES
from loss_ops.virtual_layout import run_layout
from oracle.grpo import OracleSettings, grpo_oracle

SEQUENCES, LENGTH, VOCAB, PADDED = 4, 3, 61, 64
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "k2_per_sequence_tempered": {
        "temperature": 0.7,
        "kl_estimator": "k2",
        "token_normalizer": "per_sequence_then_mean",
        "advantage": "mean_std_sample",
        "std_eps_mode": "add",
        "std_eps": 1e-4,
    },
    "k1_length_power_no_penalty": {
        "beta": 0.0,
        "kl_estimator": "k1",
        "token_normalizer": "length_power",
        "alpha": 0.5,
        "std_eps_mode": "variance",
    },
    "fixed_constant_mean_only": {
        "token_normalizer": "fixed_constant",
        "fixed_constant": 30.0,
        "advantage": "mean_only",
    },
}
LAYOUTS = ((2, 1), (2, 3))


def batch_of(fields: dict[str, Any]) -> GlobalBatch:
    """Ragged, one sequence without tokens, one group of equal rewards, NaN and inf in masked slots."""
    torch.manual_seed(1)
    slots = (SEQUENCES, LENGTH)
    policy, reference = (torch.randn(*slots, PADDED) for _ in range(2))
    mask = torch.rand(slots) > 0.3
    mask[0, 0], mask[2] = True, False
    policy[~mask], reference[~mask] = torch.nan, torch.inf
    policy[..., 0] = -torch.inf
    rewards = torch.randn(SEQUENCES)
    rewards[2:] = 1.5
    contract = GRPOLossContract.for_batch(
        num_sequences=SEQUENCES,
        padded_seq_len=LENGTH,
        vocab_size=VOCAB,
        padded_vocab_size=PADDED,
        samples_per_prompt=2,
        num_vocab_tiles=4,
        **fields,
    )
    ids = torch.randint(1, VOCAB, slots)
    return GlobalBatch(policy, reference, ids, torch.randn(slots) * 0.3 - 4, rewards, mask, contract)


def oracle_of(batch: GlobalBatch) -> dict[str, Any]:
    objective, reduction = batch.contract.objective, batch.contract.reduction
    settings = OracleSettings(
        group_boundaries=batch.contract.geometry.group_boundaries,
        beta=objective.beta,
        kl_estimator=objective.kl_estimator.value,
        token_normalizer=reduction.token_normalizer.value,
        fixed_constant=reduction.fixed_constant,
        alpha=reduction.alpha,
        advantage=objective.advantage.kind.value,
        std_eps=objective.advantage.std_eps,
        std_eps_mode=objective.advantage.std_eps_mode.value,
        temperature=objective.temperature,
        real_vocab_size=VOCAB,
    )
    tensors = (batch.policy_logits, batch.ref_logits, batch.action_ids, batch.old_logps)
    arrays = [None if each is None else each.numpy() for each in tensors]
    right = grpo_oracle(*arrays, batch.rewards.numpy(), batch.completion_mask.numpy(), settings)  # type: ignore[arg-type]
    counts = [right.clip_counts[name] for name in ("low", "high", "region", "active")]
    return {
        "loss": right.loss,
        "policy_loss": right.policy_loss,
        "kl": right.kl,
        "per_sequence_policy": right.per_sequence_policy,
        "per_sequence_kl": right.per_sequence_kl,
        "per_sequence_active_tokens": right.per_sequence_active_tokens,
        "advantages": right.advantages,
        "clip_counts": np.array(counts),
        "grad_policy_logits": right.grad,
    }


def differing(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """Names whose bits differ, -0 from +0 too."""

    def bits(values: Tensor) -> Tensor:
        return values.contiguous().view(torch.int32) if values.dtype == torch.float32 else values

    return [name for name, value in found.items() if not torch.equal(bits(value), bits(expected[name]))]


def one_case(fields: dict[str, Any]) -> dict[str, Any]:
    batch, op = batch_of(fields), TritonDistributedGRPOLossOp()
    forward = TritonDistributedGRPOLossOp(
        replace(TRITON_STAGES, program=partial(TRITON_STAGES.program, write="forward"))
    )
    staged = TritonDistributedGRPOLossOp(replace(TRITON_STAGES, program=None))
    baseline = run_layout(batch, 1, 1, op=op).quantities()
    right = oracle_of(batch)
    errors = {name: float(np.abs(baseline[name].numpy() - want).max()) for name, want in right.items()}
    drifted: dict[str, list[str]] = {}
    for layout in LAYOUTS if fields == {} else ():
        for name, used in (("split", op), ("forward", forward)):
            found = run_layout(batch, *layout, op=used).quantities((layout[0] - 1, layout[1] - 1))
            drifted[f"{name} {layout}"] = differing(found, baseline)
    drifted["forward"] = differing(run_layout(batch, 1, 1, op=forward).quantities(), baseline)
    if fields == {}:
        drifted["staged"] = differing(run_layout(batch, 1, 1, op=staged).quantities(), baseline)
    return {"errors": errors, "drifted": {name: names for name, names in drifted.items() if names}}


def dense_gradients() -> dict[str, Any]:
    """Gradients of the dense op by when they are written, and what in-place refuses."""
    batch, op = batch_of({}), TritonGRPOLossOp()

    def run(factor: float = 1.0, **how: Any) -> Tensor:
        leaf = batch.policy_logits.clone().requires_grad_()
        result = op(
            leaf * 1, batch.ref_logits, batch.action_ids, batch.old_logps, batch.rewards, batch.completion_mask,
            samples_per_prompt=2, vocab_size=VOCAB, **how,
        )  # fmt: skip
        (result.loss * factor).backward()
        assert leaf.grad is not None
        return leaf.grad

    same = {
        "forward": torch.equal(run(), run(gradient="forward")),
        "forward, scaled": torch.equal(run(0.3), run(0.3, gradient="forward")),
        "inplace": torch.equal(run(), run(inplace=True)),
        "inplace, halved": torch.equal(run() * 0.5, run(0.5, inplace=True, validate="off")),
        "inplace, scaled": bool(run(0.3, inplace=True, validate="off").isnan().any()),
    }
    return {"same": same, "refused": dict(refusals(op, batch))}


def refusals(op: TritonGRPOLossOp, batch: GlobalBatch) -> Iterator[tuple[str, str]]:
    def run(policy: Tensor, reference: Tensor | None = None, factor: float = 1.0, extra: Any = 0.0) -> None:
        result = op(
            policy, batch.ref_logits if reference is None else reference, batch.action_ids, batch.old_logps,
            batch.rewards, batch.completion_mask, samples_per_prompt=2, vocab_size=VOCAB, inplace=True,
        )  # fmt: skip
        (result.loss * factor + extra).backward()

    def layer() -> Tensor:
        return batch.policy_logits.clone().requires_grad_() * 1

    shared, used = layer(), layer()
    attempts = {
        "scaled": lambda: run(layer(), factor=0.3),
        "leaf": lambda: run(batch.policy_logits.clone().requires_grad_()),
        "shared": lambda: run(shared, shared.detach()),
        "used": lambda: run(used, extra=(used.nan_to_num() ** 2).sum()),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except (ValueError, RuntimeError) as error:
            yield name, str(error)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        outcome = dense_gradients() if name == "dense" else one_case(CASES[name])
        print(json.dumps({"case": name, **outcome}), flush=True)
