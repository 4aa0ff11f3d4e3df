"""The tiny policy against the C++ program's numbers, torch's generator, and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_contract import GRPOLossContract
from harness.workloads.ranks import Place, RealDriver
from harness.workloads.tiny_policy import EOS, Answers, draw_at_once, sample, start_table, success
from harness.workloads.tiny_runs import SAMPLERS, Step, train_many
from harness.workloads.tiny_training import TinyWorkload, tiny_contract
from harness.workloads.training import Recipe, train
from harness.workloads.uniform_stream import STREAMS, Mt19937Stream, TorchStream
from loss_ops import kernel_registry
from loss_ops.advantages import group_advantages
from loss_ops.normalizer import normalization
from loss_ops.token_terms import token_terms

CPP = {
    1: "0.074859 0.065409 0.075601 0.073339 0.071429",
    10: "0.253605 0.194955 0.242972 0.227897 0.216445",
    50: "0.919377 0.915747 0.922686 0.917622 0.914584",
    100: "0.971157 0.973650 0.973283 0.974296 0.972896",
}


def test_starts_at_one_sixteenth() -> None:
    assert float(success(start_table())) == 0.0625


def test_five_seeds_of_the_cpp_stream_give_its_numbers() -> None:
    seen: dict[int, str] = {}

    def note(number: int, success_R: Tensor) -> None:
        seen[number] = " ".join(f"{float(each):.6f}" for each in success_R)

    train_many(range(5), stream="mt19937", on_update=note)
    assert {number: seen[number] for number in CPP} == CPP


def test_the_trainer_gives_the_cpp_numbers_too() -> None:
    workload, seen = TinyWorkload(Mt19937Stream(0)), {}
    RealDriver().run(
        train(
            workload,
            range(1, 11),
            Place(),
            Recipe(),
            lambda update: seen.update({update.number: f"{float(success(workload.table)):.6f}"}),
        )
    )
    assert (seen[1], seen[10]) == ("0.074859", "0.253605")


def test_thirty_seeds_of_torch() -> None:
    finals = train_many(range(30))
    assert 0.965 < float(finals.min()) <= float(finals.max()) < 0.980


def test_looking_ahead_consumes_nothing() -> None:
    stream = Mt19937Stream(3)
    first = stream.upcoming(5).copy()
    stream.consume(2)
    assert stream.upcoming(3).tolist() == first[2:].tolist()


def test_uniforms_are_those_of_generate_canonical() -> None:
    words = np.random.RandomState(7).randint(0, 2**32, size=4, dtype=np.uint32).tolist()
    expected = [(a + b * 2**32) / 2**64 for a, b in (words[:2], words[2:])]
    assert Mt19937Stream(7).upcoming(2).tolist() == expected


@pytest.mark.parametrize("stream", [Mt19937Stream, TorchStream])
def test_answers_end_at_eos_and_only_there(stream: type[Mt19937Stream]) -> None:
    answers = sample(start_table(), stream(1), 16)
    lengths = answers.mask_ST.sum(dim=1)
    assert ((lengths >= 1) & (lengths <= 3)).all()
    last = answers.action_ids_ST.gather(1, lengths[:, None] - 1)[:, 0]
    assert ((last == EOS) | (lengths == 3)).all()
    inner = answers.mask_ST.clone().scatter_(1, lengths[:, None] - 1, False)
    assert (answers.action_ids_ST[inner] != EOS).all()


def test_at_once_is_one_by_one_when_every_answer_takes_three_numbers() -> None:
    table = torch.zeros(6, 4)
    table[:, EOS] = -1e9  # no answer ends early, so both ways use the same numbers
    alone = sample(table, TorchStream(5), 4)
    uniforms = TorchStream(5).upcoming(36).reshape(1, 12, 3)
    at_once = draw_at_once(table[None], uniforms)
    assert all(np.array_equal(a.numpy(), b) for a, b in zip(vars(alone).values(), at_once, strict=True))


@pytest.mark.parametrize(("runs", "stream"), [(1, "mt19937"), (1, "torch"), (3, "torch")])
def test_many_runs_have_the_bits_of_the_loss_ops_stages(runs: int, stream: str) -> None:
    fast = Step(runs, 16)
    tables_R, expected_R = torch.zeros(2, runs, 6, 4)
    streams = [STREAMS[stream](seed) for seed in range(runs)]
    for _ in range(30):
        drawn = SAMPLERS[stream](tables_R, streams, 16)
        fast(tables_R, drawn)
        _step_by_stages(expected_R, Answers(*map(torch.from_numpy, drawn)), tiny_contract(16, runs))
        assert torch.equal(tables_R.view(torch.int32), expected_R.view(torch.int32))


def _step_by_stages(tables_R: Tensor, answers: Answers, contract: GRPOLossContract) -> None:
    """An update written with the stages of the loss op, which look at every token."""
    objective, mask = contract.objective, answers.mask_ST
    run_S = torch.arange(len(tables_R)).repeat_interleave(len(mask) // len(tables_R))
    pairs = (run_S[:, None] * 6 + answers.states_ST) * 4 + answers.action_ids_ST
    advantages = group_advantages(answers.rewards(), contract.geometry.group_boundaries, objective.advantage)
    weight_S = normalization(mask.sum(dim=1), contract).weight_B * len(tables_R)
    old = torch.log_softmax(tables_R, dim=-1).flatten()[pairs]
    start = torch.full_like(old, -math.log(4))
    for _ in range(4):
        logp = torch.log_softmax(tables_R, dim=-1).flatten()
        terms = token_terms(logp[pairs], start, old, advantages, mask, objective)
        slope = torch.where(mask, (terms.d_policy + objective.beta * terms.d_kl) * weight_S[:, None], 0.0)
        taken = torch.zeros_like(logp).index_add_(0, pairs.flatten(), slope.flatten()).view_as(tables_R)
        gradient = taken - taken.sum(dim=-1, keepdim=True) * logp.exp().view_as(tables_R)
        tables_R.sub_(gradient, alpha=0.5)


def test_a_number_of_samples_that_is_no_power_of_two_trains_too() -> None:
    assert float(train_many([0], samples_per_prompt=6).min()) > 0.9


def test_reward_needs_the_own_token_and_eos() -> None:
    states = torch.tensor([[0, 3, 0], [1, 3, 0], [2, 5, 5], [0, 0, 0]])
    actions = torch.tensor([[0, EOS, 0], [0, EOS, 0], [2, 2, EOS], [EOS, 0, 0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0]]).bool()
    assert Answers(states, actions, mask).rewards().tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"token_normalizer": "global_active_tokens"},
        {"token_normalizer": "length_power", "alpha": 0.5},
        {"kl_estimator": "k1", "beta": 0.2},
        {"kl_estimator": "k2", "beta": 0.2, "token_normalizer": "fixed_constant", "fixed_constant": 30.0},
    ],
)
def test_table_gradient_agrees_with_finite_differences(fields: dict[str, object]) -> None:
    contract = tiny_contract(**fields)
    table, old_table = (torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)) * 0.3 for seed in (1, 2))
    answers = sample(old_table, TorchStream(0), 16)
    gradient = _op_gradient(table, old_table, answers, contract)
    step = 1e-5
    for element in np.ndindex(6, 4):
        moved = []
        for sign in (1, -1):
            shifted = table.double().clone()
            shifted[element] += sign * step
            moved.append(float(_loss(shifted, old_table.double(), answers, contract)))
        difference = (moved[0] - moved[1]) / (2 * step)
        assert abs(float(gradient[element]) - difference) <= 2e-4 * 0.05 + 3e-3 * abs(difference)


def _op_gradient(table: Tensor, old_table: Tensor, answers: Answers, contract: object) -> Tensor:
    leaf = table.clone().requires_grad_()
    op = kernel_registry.get_loss_op(contract).op  # type: ignore[arg-type]
    result = op.apply(
        leaf[answers.states_ST],
        answers.action_ids_ST,
        _selected(old_table.double(), answers).float(),
        answers.rewards(),
        contract=contract,
        completion_mask=answers.mask_ST,
        ref_local_logits=torch.zeros(*answers.states_ST.shape, 4),
    )
    result.loss.backward()
    assert leaf.grad is not None
    return leaf.grad


def _selected(table: Tensor, answers: Answers) -> Tensor:
    logp = torch.log_softmax(table, dim=-1)[answers.states_ST]
    return logp.gather(2, answers.action_ids_ST[:, :, None])[:, :, 0]


def _loss(table: Tensor, old_table: Tensor, answers: Answers, contract: object) -> Tensor:
    """The objective in float64, written down once more."""
    objective, reduction = contract.objective, contract.reduction  # type: ignore[attr-defined]
    rewards = answers.rewards().double().view(3, -1)
    spread = (rewards.var(dim=1, unbiased=False, keepdim=True) + 1e-8).sqrt()
    advantages = ((rewards - rewards.mean(dim=1, keepdim=True)) / spread).view(-1, 1)
    advantages[(rewards == rewards[:, :1]).all(dim=1).repeat_interleave(rewards.shape[1])] = 0.0
    logp = _selected(table, answers)
    ratio = (logp - _selected(old_table, answers)).exp()
    policy = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    d = torch.full_like(logp, 0.25).log() - logp
    kl = {"k1": -d, "k2": d * d / 2, "k3": d.exp() - d - 1}[objective.kl_estimator.value]
    lengths = answers.mask_ST.sum(dim=1, keepdim=True).double()
    weight = {
        "global_active_tokens": lambda: 1 / lengths.sum(),
        "per_sequence_then_mean": lambda: 1 / (lengths * len(lengths)),
        "fixed_constant": lambda: 1 / torch.tensor(reduction.fixed_constant),
        "length_power": lambda: lengths ** (reduction.alpha - 1) / len(lengths),
    }[reduction.token_normalizer.value]()
    return ((policy + objective.beta * kl) * weight * answers.mask_ST).sum()
