"""The ops below the loss: ratio and KL from dense logits, log-probabilities from sharded ones."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_contract import (
    GRPOVerifyError,
    InputError,
    LogprobContract,
    LogprobContractError,
    ShardingError,
    ShardingSpec,
)
from loss_ops import kernel_registry
from loss_ops.inputs import Slots
from loss_ops.loss_program import selected_logprobs
from loss_ops.native_ratio_kl import NativeRatioKLOp
from loss_ops.stages import NATIVE_STAGES
from loss_ops.virtual_ranks import run_virtual
from loss_ops.vocab_logprob import VocabParallelLogprobOp
from loss_ops.vocab_shard import VocabShard
from support.bits import count_differing

ROWS, LENGTH, REAL, PADDED = 3, 5, 13, 16


def drawn(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(3)
    shape = (ROWS, LENGTH)
    policy = 2 * torch.randn(*shape, PADDED, generator=draw)
    return {
        "policy_logits": policy.to(dtype),
        "ref_logits": (policy + 0.3 * torch.randn(policy.shape, generator=draw)).to(dtype),
        "action_ids": torch.randint(0, REAL, shape, generator=draw),
        "completion_mask": torch.rand(shape, generator=draw) < 0.7,
        "old_logps": -3 * torch.rand(shape, generator=draw),
    }


def by_autograd(held: dict[str, Tensor], estimator: str, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Ratio, KL and the policy logits they hang on, in float64, from the textbook formulas."""
    policy = held["policy_logits"].double().requires_grad_()
    logp, ref = (
        (logits[..., :REAL] / temperature).log_softmax(-1).gather(-1, held["action_ids"][..., None])[..., 0]
        for logits in (policy, held["ref_logits"].double())
    )
    d = ref - logp
    kl = {"k1": -d, "k2": d * d / 2, "k3": d.exp() - 1 - d}[estimator]
    mask = held["completion_mask"]
    ratio = (logp - held["old_logps"].double()).exp()
    return torch.where(mask, ratio, 1.0), torch.where(mask, kl, 0.0), policy


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("temperature", [1.0, 0.8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ratio_and_kl_with_their_gradients(estimator: str, temperature: float, dtype: torch.dtype) -> None:
    held = drawn(dtype)
    leaf = held["policy_logits"].requires_grad_()
    got = kernel_registry.get_op("ratio_kl", "native")(
        *held.values(), kl_estimator=estimator, temperature=temperature, vocab_size=REAL
    )
    expected = by_autograd({name: value.detach() for name, value in held.items()}, estimator, temperature)
    weights = torch.randn(2, ROWS, LENGTH, generator=torch.Generator().manual_seed(4))
    for value, right in zip(got, expected, strict=False):
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), right, rtol=3e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad((weights[0] * got[0] + weights[1] * got[1]).sum(), leaf)
    right = (weights[0].double() * expected[0] + weights[1].double() * expected[1]).sum()
    (exact,) = torch.autograd.grad(right, expected[2])
    rounding = {torch.float32: 5e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[dtype]
    torch.testing.assert_close(gradient.double(), exact, rtol=rounding, atol=2e-6)
    masked = ~held["completion_mask"]
    assert (gradient[masked] == 0).all()
    assert (gradient[..., REAL:] == 0).all()
    assert (got[0][masked] == 1).all()
    assert (got[1][masked] == 0).all()


def test_masked_slots_of_ratio_and_kl_may_hold_anything() -> None:
    clean, dirty = drawn(), drawn()
    masked = ~clean["completion_mask"]
    assert masked.any()
    dirty["policy_logits"][masked] = math.nan
    dirty["ref_logits"][masked] = math.inf
    dirty["action_ids"][masked] = -100
    dirty["old_logps"][masked] = math.nan
    results = []
    for held in (clean, dirty):
        leaf = held["policy_logits"].requires_grad_()
        ratio, kl = NativeRatioKLOp()(*held.values(), vocab_size=REAL)
        results.append((ratio, kl, torch.autograd.grad((ratio + kl).sum(), leaf)[0]))
    assert [count_differing(one, other) for one, other in zip(*results, strict=True)] == [0, 0, 0]


def test_the_reference_gets_no_gradient() -> None:
    held = drawn()
    held["ref_logits"].requires_grad_()
    held["policy_logits"].requires_grad_()
    _, kl = NativeRatioKLOp()(*held.values())
    kl.sum().backward()
    assert held["ref_logits"].grad is None
    assert held["policy_logits"].grad is not None


def test_ratio_of_the_policy_to_itself_is_one() -> None:
    held = drawn()
    logits, ids, mask = held["policy_logits"], held["action_ids"], torch.ones(ROWS, LENGTH)
    zero = torch.zeros(ROWS, LENGTH)
    ratio, _ = NativeRatioKLOp()(logits, logits, ids, mask.bool(), zero)
    again, kl = NativeRatioKLOp()(logits, logits, ids, mask.bool(), ratio.log())
    torch.testing.assert_close(again, torch.ones_like(again), rtol=1e-6, atol=0)
    assert (kl == 0).all()


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"old_logps": torch.zeros(ROWS, 1)}, {}, "old_logps: expected shape [15] or [3, 5], got shape [3, 1]"),
        (
            {"ref_logits": torch.zeros(ROWS, LENGTH, 7)},
            {},
            "ref_logits: expected shape [15, 16] or [3, 5, 16], got",
        ),
        ({"action_ids": torch.full((ROWS, LENGTH), 13)}, {}, "expected an id in [0, 13), got 13"),
        ({"action_ids": torch.zeros(ROWS, 4).long()}, {}, "action_ids: expected shape [15] or [3, 5], got"),
        ({"policy_logits": torch.zeros(ROWS, PADDED)}, {}, "policy_logits: expected shape [B, T, V], got shape"),
        ({}, {"temperature": 0.0}, "objective.temperature: expected a number above 0, got 0.0"),
        ({}, {"kl_estimator": "k4"}, "objective.kl_estimator: expected 'k1', 'k2' or 'k3', got k4"),
    ],
)
def test_arguments_of_ratio_kl_that_do_not_fit(
    changes: dict[str, Tensor], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(GRPOVerifyError) as caught:
        NativeRatioKLOp()(*(drawn() | changes).values(), vocab_size=REAL, **options)
    assert words in str(caught.value)


# Log-probabilities from a sharded vocabulary

CONTRACT = LogprobContract(real_vocab_size=REAL, padded_vocab_size=PADDED, num_vocab_tiles=4)


def place(tp_rank: int = 0, bounds: tuple[tuple[int, int], ...] = ((0, PADDED),)) -> ShardingSpec:
    return ShardingSpec(
        tp_rank=tp_rank,
        tp_degree=len(bounds),
        vocab_shard_bounds=bounds,
        sequence_shard_bounds=((0, ROWS),),
    )


@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_log_probabilities_and_their_gradient(temperature: float) -> None:
    held = drawn()
    leaf = held["policy_logits"].flatten(0, 1).requires_grad_()
    ids, active = held["action_ids"].flatten(), held["completion_mask"].flatten()
    got = VocabParallelLogprobOp().apply(
        leaf, ids, contract=CONTRACT, sharding=place(), active=active, temperature=temperature
    )
    wide = leaf.detach().double().requires_grad_()
    exact = (wide[:, :REAL] / temperature).log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    exact = torch.where(active, exact, 0.0)
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=2e-6)
    weights = torch.randn(len(ids), generator=torch.Generator().manual_seed(5))
    (gradient,) = torch.autograd.grad(got, leaf, weights)
    (right,) = torch.autograd.grad(exact, wide, weights.double())
    torch.testing.assert_close(gradient.double(), right, rtol=3e-6, atol=3e-7)
    assert (got[~active] == 0).all()


def test_every_shard_sees_the_same_log_probabilities() -> None:
    held = drawn()
    logits, ids = held["policy_logits"].flatten(0, 1), held["action_ids"].flatten()
    whole = VocabParallelLogprobOp().apply(logits, ids, contract=CONTRACT, sharding=place())
    bounds = ((0, 8), (8, 12), (12, 16))
    programs = {}
    for rank, (start, stop) in enumerate(bounds):
        shard = VocabShard.of(CONTRACT, place(rank, bounds))
        slots = Slots(ids, torch.ones_like(ids, dtype=torch.bool), shard, 1.0)
        programs[rank, 0] = selected_logprobs([logits[:, start:stop]], slots, NATIVE_STAGES)
    for (part,) in run_virtual(programs).values():
        assert count_differing(part.logp_N, whole) == 0


@pytest.mark.parametrize(
    ("logits", "ids", "words"),
    [
        (torch.zeros(4, 12), torch.zeros(4).long(), "local_logits: expected 16 columns, got 12"),
        (torch.zeros(4, 16).half(), torch.zeros(4).long(), "local_logits: expected float32, got float16"),
        (torch.zeros(4, 16), torch.zeros(1).long(), "action_ids: expected 4 ids, got 1"),
        (torch.zeros(4, 16), torch.zeros(5).long(), "action_ids: expected 4 ids, got 5"),
    ],
)
def test_logits_that_are_not_the_owned_ones(logits: Tensor, ids: Tensor, words: str) -> None:
    with pytest.raises(LogprobContractError) as caught:
        VocabParallelLogprobOp().apply(logits, ids, contract=CONTRACT, sharding=place())
    assert [str(problem) for problem in caught.value.problems] == [f"logprob.{words}"]


@pytest.mark.parametrize(
    ("bounds", "options", "kind", "words"),
    [
        (((0, 15),), {}, ShardingError, "sharding.vocab_shard_bounds[0]: expected stop 16, got stop 15"),
        (
            ((0, 6), (6, 16)),
            {"tp_group": SimpleNamespace(size=lambda: 2)},
            ShardingError,
            "sharding.vocab_shard_bounds[1]: expected a start on a tile border (a multiple of 4), got 6",
        ),
        (((0, 8), (8, 16)), {}, InputError, "tp_group: expected a group of 2 ranks, got no group"),
        (
            ((0, 8), (8, 16)),
            {"tp_group": SimpleNamespace(size=lambda: 4)},
            InputError,
            "tp_group: expected a group of 2 ranks, got a group of 4",
        ),
        (((0, 16),), {"temperature": 0.0}, InputError, "temperature: expected a finite number above 0, got 0.0"),
        (
            ((0, 16),),
            {"temperature": torch.inf},
            InputError,
            "temperature: expected a finite number above 0, got inf",
        ),
    ],
)
def test_the_place_is_checked(
    bounds: tuple[tuple[int, int], ...], options: dict[str, Any], kind: type[GRPOVerifyError], words: str
) -> None:
    logits = torch.zeros(4, bounds[0][1])
    with pytest.raises(kind) as caught:
        VocabParallelLogprobOp().apply(
            logits, torch.zeros(4).long(), contract=CONTRACT, sharding=place(0, bounds), **options
        )
    assert [str(problem) for problem in caught.value.problems] == [words]


def test_a_stated_number_of_slots_is_checked() -> None:
    stated = CONTRACT.model_copy(update={"num_tokens": 6})
    with pytest.raises(LogprobContractError, match=r"logprob\.num_tokens|local_logits: expected 6 rows, got 4"):
        VocabParallelLogprobOp().apply(
            torch.zeros(4, 16), torch.zeros(4).long(), contract=stated, sharding=place()
        )


def test_the_dense_loss_wants_three_dims() -> None:
    with pytest.raises(InputError, match=r"policy_logits: expected shape \[B, T, V\], got shape \[4, 16\]"):
        kernel_registry.get_op("grpo_loss", "native")(torch.zeros(4, 16), None, *[torch.zeros(4)] * 3)
