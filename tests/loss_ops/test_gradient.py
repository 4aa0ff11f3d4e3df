"""The gradient: against float64 and finite differences, and what autograd makes of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_contract import ShardingSpec
from loss_ops import kernel_registry
from loss_ops.batch import GlobalBatch
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.result import GRPOLossResult
from loss_ops.virtual_layout import run_layout
from support.batches import drawn, oracle_of, small, small_spec
from support.bits import count_differing

FIELDS: list[dict[str, Any]] = [
    {},
    {"kl_estimator": "k1", "temperature": 1.7, "clip_eps_high": 0.28},
    {"kl_estimator": "k2", "token_normalizer": "per_sequence_then_mean", "beta": 0.5},
    {"token_normalizer": "per_sequence_then_mean", "sequence_denominator": "all", "temperature": 0.6},
    {"token_normalizer": "fixed_constant", "fixed_constant": 24, "advantage": "mean_only"},
    {"token_normalizer": "length_power", "alpha": 0.5, "advantage": "mean_std_sample"},
    {"beta": 0.0, "std_eps_mode": "variance", "std_eps": 0.1},
]


def clean(seed: int = 0, **fields: Any) -> GlobalBatch:
    """Ragged, without garbage in the logits, so that float64 may look at all of it."""
    batch = drawn(small_spec(raggedness="staggered"), seed, **fields)
    mask = batch.completion_mask & (torch.arange(8) % 5 != 3)
    return replace(batch, completion_mask=mask)


def apply(batch: GlobalBatch, logits: Tensor, **options: Any) -> GRPOLossResult:
    """The sharded op at 1x1."""
    return DistributedGRPOLossOp().apply(
        logits,
        batch.action_ids,
        batch.old_logps,
        batch.rewards,
        contract=batch.contract,
        completion_mask=batch.completion_mask,
        ref_local_logits=batch.ref_logits,
        **options,
    )


def gradient(batch: GlobalBatch, **options: Any) -> Tensor:
    logits = batch.policy_logits.clone().requires_grad_()
    apply(batch, logits, **options).loss.backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: " ".join(map(str, fields.values())) or "default")
def test_every_quantity_is_that_of_float64(fields: dict[str, Any]) -> None:
    batch = clean(1, **fields)
    expected, got = oracle_of(batch), run_layout(batch, 3, 2).quantities((2, 1))
    assert 0 < expected.clip_counts["region"] < expected.clip_counts["active"]
    scale = np.abs(expected.grad).max()
    np.testing.assert_allclose(got["grad_policy_logits"].numpy(), expected.grad, rtol=1e-5, atol=1e-6 * scale)
    for name in ("per_sequence_policy", "per_sequence_kl", "advantages"):
        np.testing.assert_allclose(got[name].numpy(), getattr(expected, name), rtol=1e-5, atol=1e-6, err_msg=name)
    for name in ("loss", "policy_loss", "kl"):
        assert got[name].item() == pytest.approx(getattr(expected, name), rel=2e-6, abs=1e-6), name
    assert got["clip_counts"].tolist() == [expected.clip_counts[n] for n in ("low", "high", "region", "active")]


@pytest.mark.parametrize("fields", FIELDS[:3])
def test_finite_differences_of_the_oracle(fields: dict[str, Any]) -> None:
    batch = clean(2, **fields)
    got = gradient(batch)
    step = 2.0**-10  # exact in float32 beside logits of this size
    chosen = got.abs().flatten().topk(12).indices.tolist()
    for index in chosen:
        place = np.unravel_index(index, got.shape)
        moved = [batch.policy_logits.double().clone() for _ in range(2)]
        for logits, sign in zip(moved, (1, -1), strict=True):
            logits[tuple(place)] += sign * step
        losses = [double_loss(batch, logits) for logits in moved]
        assert got[tuple(place)].item() == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=2e-4)


def double_loss(batch: GlobalBatch, logits: Tensor) -> float:
    """The oracle's loss with policy logits of float64."""
    wide = replace(batch, policy_logits=_Wide(logits))  # type: ignore[arg-type]
    return oracle_of(wide).loss


class _Wide:
    """Logits that stay float64 where the helper would narrow them."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def float(self) -> Tensor:
        return self.values


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_of_the_gradient_sum_to_zero(dtype: str) -> None:
    rows = gradient(clean(3, dtype=dtype)).double()
    rounding = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    smallest = 24 * torch.finfo(getattr(torch, dtype)).smallest_normal * 2.0**-11
    assert (rows.sum(-1).abs() <= rounding * rows.abs().sum(-1) + smallest).all()


# Autograd


@pytest.mark.parametrize("factor", [2.0, -0.3, 0.0])
def test_an_upstream_gradient_scales(factor: float) -> None:
    batch = clean(4)
    logits = batch.policy_logits.clone().requires_grad_()
    (factor * apply(batch, logits).loss).backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, factor * gradient(batch), rtol=3e-7, atol=0)


def test_grad_scale_is_applied_before_the_gradient_is_narrowed() -> None:
    """A float16 gradient below 2^-24 is zero; scaled in float32 first, it is not."""
    fields = {"token_normalizer": "fixed_constant", "fixed_constant": 1e6, "dtype": "float16"}
    batch = clean(5, **fields)
    plain, scaled = gradient(batch), gradient(batch, grad_scale=2.0**16)
    wide = gradient(clean_as_float32(batch))
    assert (scaled != 0).sum() > 2 * (plain != 0).sum()
    expected = (wide * 2.0**16).half()
    torch.testing.assert_close(scaled, expected, rtol=1e-3, atol=6e-8)
    live = wide.abs() * 2.0**16 > 2.0**-24
    assert (scaled[live] != 0).all()


def clean_as_float32(batch: GlobalBatch) -> GlobalBatch:
    content = batch.contract.model_dump()
    content["logprob"]["dtype"] = "float32"
    assert batch.ref_logits is not None
    wide = {"policy_logits": batch.policy_logits.float(), "ref_logits": batch.ref_logits.float()}
    return replace(batch, contract=type(batch.contract)(**content), **wide)


def test_grad_scale_leaves_the_loss_alone() -> None:
    batch = clean(6)
    logits = batch.policy_logits
    assert count_differing(apply(batch, logits).loss, apply(batch, logits, grad_scale=512.0).loss) == 0
    assert count_differing(gradient(batch) * 512, gradient(batch, grad_scale=512.0)) == 0


def test_only_the_policy_logits_get_a_gradient() -> None:
    batch = clean(7)
    assert batch.ref_logits is not None
    leaves = {
        "policy_logits": batch.policy_logits.requires_grad_(),
        "ref_logits": batch.ref_logits.requires_grad_(),
        "old_logps": batch.old_logps.requires_grad_(),
        "rewards": batch.rewards.requires_grad_(),
    }
    result = apply(batch, batch.policy_logits)
    assert result.loss.requires_grad
    held = {name for name, value in vars(result).items() if isinstance(value, Tensor) and value.requires_grad}
    assert held == {"loss"}
    result.loss.backward()
    assert {name for name, leaf in leaves.items() if leaf.grad is not None} == {"policy_logits"}


def test_logits_changed_in_place_after_the_forward() -> None:
    batch = clean(8)
    logits = batch.policy_logits.clone().requires_grad_()
    held = logits * 1.0
    loss = apply(batch, held).loss
    held.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_there_is_no_second_derivative() -> None:
    batch = clean(9)
    logits = batch.policy_logits.clone().requires_grad_()
    (first,) = torch.autograd.grad(apply(batch, logits).loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|does not require grad"):
        torch.autograd.grad(first.sum(), logits)


def test_strides_of_the_logits_do_not_matter() -> None:
    batch = clean(10)
    expected = gradient(batch)
    strided = torch.empty(8, 24, 6).permute(2, 0, 1).copy_(batch.policy_logits)
    assert not strided.is_contiguous()
    assert count_differing(gradient(replace(batch, policy_logits=strided)).contiguous(), expected) == 0
    offset = torch.empty(6, 8, 31)[..., 5:29].copy_(batch.policy_logits)
    assert count_differing(gradient(replace(batch, policy_logits=offset)), expected) == 0


def test_without_grad_there_is_only_a_value() -> None:
    batch = clean(11)
    assert not apply(batch, batch.policy_logits).loss.requires_grad
    with torch.no_grad():
        assert not apply(batch, batch.policy_logits.clone().requires_grad_()).loss.requires_grad


def test_a_result_unpacks_and_says_what_ran() -> None:
    batch = small(12)
    result = apply(batch, batch.policy_logits)
    loss, policy_loss, kl = result
    assert [loss.shape, policy_loss.shape, kl.shape] == [torch.Size([])] * 3
    assert {each.dtype for each in result} == {torch.float32}
    assert loss.item() == pytest.approx(policy_loss.item() + 0.04 * kl.item(), rel=1e-6)
    assert result.provenance["backend"].startswith("native")
    assert result.provenance["numeric_fingerprint"] == batch.contract.numeric_fingerprint()
    counts = result.clip_counts.as_dict()
    assert counts["region"] == counts["low"] + counts["high"]
    assert counts["active"] == int(batch.completion_mask.sum()) == int(result.per_sequence_active_tokens.sum())


def test_summed_shards_of_a_parameter_gradient_are_the_whole() -> None:
    """A trainer sums over DP: the gradient of a scale on all logits is the sum of the ranks' parts."""
    batch = clean(13)
    whole = (gradient(batch) * batch.policy_logits).sum()
    outcome = run_layout(batch, 1, 3)
    parts = []
    for rank in range(3):
        rows = slice(*ShardingSpec.even(1, 3, rank=rank, contract=batch.contract).sequence_shard)
        parts.append((outcome.gradient[rows] * batch.policy_logits[rows]).sum())
    torch.testing.assert_close(sum(parts), whole, rtol=1e-5, atol=1e-7)


def test_the_dense_op_takes_uniform_groups() -> None:
    batch = drawn(small_spec(raggedness="full", group_boundaries=(0, 3, 6)), 14)
    op = kernel_registry.get_op("grpo_loss", "native")
    call = (batch.ref_logits, batch.action_ids, batch.old_logps, batch.rewards)
    results = [
        op(batch.policy_logits, *call, batch.completion_mask, samples_per_prompt=3, vocab_size=21),
        op(batch.policy_logits, *call, None, group_boundaries=[0, 3, 6], vocab_size=21),
        op(batch.policy_logits, *call, batch.completion_mask.int(), samples_per_prompt=3, vocab_size=21),
    ]
    assert len({result.loss.item() for result in results}) == 1
