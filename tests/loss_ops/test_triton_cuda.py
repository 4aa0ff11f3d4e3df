"""The Triton kernels on a device: accuracy against float64, and bits that depend on nothing but the contract."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, ShardingSpec
from loss_ops.batch import GlobalBatch
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.virtual_layout import run_layout
from loss_ops.vocab_shard import VocabShard
from oracle.cases import Case, load_cases
from oracle.expect import mismatches
from support.batches import as_actual, case_batch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("triton")

from loss_ops import triton_one_kernel
from loss_ops.triton_held_launch import multiprocessors
from loss_ops.triton_loss import TritonDistributedGRPOLossOp, TritonGRPOLossOp
from loss_ops.triton_stages import TRITON_STAGES
from loss_ops.triton_tiles import launch_row_states

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Rows of 50257 columns are aligned to nothing; 131072 and 32768 to everything.
VOCABULARIES = (131072, 50257, 32768, 1003)


def bits(values: Tensor) -> Tensor:
    """Raw bits, in which +0 and -0 differ."""
    views = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
    return values.contiguous().view(views.get(values.dtype, values.dtype))


def same(left: Tensor, right: Tensor) -> bool:
    return torch.equal(bits(left), bits(right))


def logits_of(*shape: int, dtype: torch.dtype, seed: int = 0, spread: float = 3.0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn(*shape, device="cuda", generator=generator) * spread).to(dtype)


def batch_of(
    sequences: int, length: int, vocab: int, dtype: torch.dtype, *, padding: int = 0, **fields: object
) -> GlobalBatch:
    """A ragged batch with NaN in its masked slots and one -inf column in every row."""
    torch.manual_seed(7)
    columns = vocab + padding
    policy = logits_of(sequences, length, columns, dtype=dtype, seed=1)
    reference = logits_of(sequences, length, columns, dtype=dtype, seed=2)
    ids = torch.randint(1, vocab, (sequences, length), device="cuda")
    policy[..., 0] = -torch.inf
    mask = torch.rand(sequences, length, device="cuda") < 0.8
    mask[:, 0] = True
    policy[~mask], reference[~mask] = torch.nan, torch.inf
    contract = GRPOLossContract.for_batch(
        num_sequences=sequences,
        padded_seq_len=length,
        vocab_size=vocab,
        padded_vocab_size=columns,
        samples_per_prompt=max(2, sequences // 2),
        dtype=str(dtype).removeprefix("torch."),
        **fields,
    )
    logp = torch.where(mask[..., None], policy, 0).double().log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    old = (logp + torch.randn_like(logp) * 0.3).float()
    return GlobalBatch(policy, reference, ids, old, torch.randn(sequences, device="cuda"), mask, contract)


def states(logits_NV: Tensor, ids_N: Tensor, active_N: Tensor, temperature: float = 1.0) -> Tensor:
    contract = GRPOLossContract.for_batch(
        num_sequences=1,
        padded_seq_len=logits_NV.shape[0],
        vocab_size=logits_NV.shape[1],
        group_boundaries=[0, 1],
        advantage="mean_only",
    )
    shard = VocabShard.of(contract.logprob, ShardingSpec.even(1, 1, contract=contract))
    out = torch.empty(3, logits_NV.shape[0], device="cuda")
    launch_row_states([logits_NV], ids_N, active_N, shard, 1.0 / temperature, out, merged=True)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_bits_of_a_row_depend_on_nothing_around_it(vocab: int, dtype: torch.dtype) -> None:
    rows = 48
    wide = logits_of(rows, vocab + 64, dtype=dtype)
    dense = wide[:, :vocab].contiguous()
    ids = torch.randint(0, vocab, (rows,), device="cuda")
    active = torch.ones(rows, dtype=torch.bool, device="cuda")
    whole = states(dense, ids, active)
    assert same(whole, states(dense, ids, active)), "run to run"
    assert same(whole[:, 5:6], states(dense[5:6], ids[5:6], active[5:6])), "one row alone"
    assert same(whole[:, ::2], states(dense[::2], ids[::2], active[::2])), "every other row"
    assert same(whole, states(wide[:, :vocab], ids, active)), "a view of wider rows"
    for offset in (1, 3, 8):
        moved = torch.empty(rows, vocab + 65, dtype=dtype, device="cuda")
        view = moved[:, offset : offset + vocab]
        view.copy_(dense)
        assert same(whole, states(view, ids, active)), f"rows that start at column {offset}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_logp_against_float64(dtype: torch.dtype) -> None:
    for vocab, spread, temperature in ((131072, 1.0, 1.0), (50257, 6.0, 0.7), (1003, 12.0, 1.3)):
        logits = logits_of(64, vocab, dtype=dtype, spread=spread)
        ids = torch.cat((logits[:32].argmax(1), torch.randint(0, vocab, (32,), device="cuda")))
        active = torch.ones(64, dtype=torch.bool, device="cuda")
        largest, total, selected = states(logits, ids, active, temperature)
        logp = (selected - largest) / temperature - total.log()
        exact = (logits.double() / temperature).log_softmax(1).gather(1, ids[:, None])[:, 0]
        error = (logp.double() - exact).abs() / exact.abs().clamp_min(1.0)
        assert error.max() <= 2e-6, f"V={vocab}: {error.max():.2e}"


@pytest.mark.parametrize("vocab", [4096, 5003])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_and_path_gives_the_same_bits(vocab: int, dtype: torch.dtype) -> None:
    batch = batch_of(8, 24, vocab, dtype, padding=13)
    op = TritonDistributedGRPOLossOp()
    forward = TritonDistributedGRPOLossOp(
        replace(TRITON_STAGES, program=partial(TRITON_STAGES.program, write="forward"))
    )
    baseline = run_layout(batch, 1, 1, op=op).quantities()
    assert (baseline["grad_policy_logits"] != 0).float().mean() > 0.05
    for layout in ((1, 1), (2, 1), (4, 1), (8, 1), (3, 1), (1, 2), (1, 8), (2, 2), (3, 3)):
        for name, used in (("split", op), ("forward", forward)):
            found = run_layout(batch, *layout, op=used).quantities((layout[0] - 1, layout[1] - 1))
            drifted = [key for key, value in found.items() if not same(value, baseline[key])]
            assert not drifted, f"{name} at {layout}: {drifted}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_native(dtype: torch.dtype) -> None:
    for fields in ({}, {"temperature": 0.8, "kl_estimator": "k2", "token_normalizer": "per_sequence_then_mean"}):
        batch = batch_of(8, 24, 5003, dtype, padding=5, **fields)
        native = run_layout(batch, 1, 1, op=DistributedGRPOLossOp()).quantities()
        ours = run_layout(batch, 1, 1, op=TritonDistributedGRPOLossOp()).quantities()
        for name, value in ours.items():
            assert torch.allclose(value.double(), native[name].double(), rtol=2e-5, atol=1e-5), name
        assert same(ours["clip_counts"], native["clip_counts"])


def run_dense(
    op: TritonGRPOLossOp, batch: GlobalBatch, factor: float = 1.0, **how: object
) -> tuple[Tensor, Tensor]:
    leaf = batch.policy_logits.detach().clone().requires_grad_()
    layer_output = leaf * 1
    result = op(
        layer_output, batch.ref_logits, batch.action_ids, batch.old_logps, batch.rewards, batch.completion_mask,
        samples_per_prompt=4, vocab_size=batch.contract.logprob.real_vocab_size, **how,
    )  # fmt: skip
    (result.loss * factor).backward()
    assert leaf.grad is not None
    return result.loss.detach(), leaf.grad


@pytest.mark.parametrize("factor", [1.0, 0.37])
def test_gradient_written_by_the_forward(factor: float) -> None:
    batch, op = batch_of(8, 24, 5003, torch.bfloat16, padding=5), TritonGRPOLossOp()
    loss, gradient = run_dense(op, batch, factor)
    ahead_loss, ahead = run_dense(op, batch, factor, gradient="forward")
    assert same(loss, ahead_loss)
    assert same(gradient, ahead)


def test_gradient_in_place() -> None:
    batch, op = batch_of(8, 24, 5003, torch.bfloat16, padding=5), TritonGRPOLossOp()
    loss, gradient = run_dense(op, batch)
    replaced_loss, replaced = run_dense(op, batch, inplace=True)
    assert same(loss, replaced_loss)
    assert same(gradient, replaced)
    with pytest.raises(ValueError, match="grad_scale"):
        run_dense(op, batch, 0.5, inplace=True)


def awkward_batch(vocab: int, dtype: torch.dtype, padding: int) -> GlobalBatch:
    """More rows than programs: of ordinary logits, with -inf, and with exponentials that are denormal."""
    batch = batch_of(4, 150, vocab, dtype, padding=padding)
    policy, mask = batch.policy_logits, batch.completion_mask
    policy[:, ::3, 0] = torch.where(mask[:, ::3], 1.0, torch.nan).to(dtype)
    policy[:, 1::4] *= 12
    batch.ref_logits[:, 3::5] *= 8
    batch.action_ids.copy_(torch.where(mask[..., None], policy, 0)[..., :vocab].argmax(-1))
    return batch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocab", "padding"), [(32768, 0), (131072, 0), (40000, 40)])
def test_rows_held_on_the_chip(
    vocab: int, padding: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, op, calls = awkward_batch(vocab, dtype, padding), TritonGRPOLossOp(), []
    launch_held_row = triton_one_kernel.launch_held_row
    monkeypatch.setattr(
        triton_one_kernel, "launch_held_row", lambda *args: (calls.append(args), launch_held_row(*args))
    )
    for used, fields in (
        (batch, {}),
        (batch, {"temperature": 0.7}),
        (replace(batch, ref_logits=None), {"beta": 0.0}),
    ):
        loss, gradient = run_dense(op, used, grad_scale=2.0**14, **fields)
        for how in ({"gradient": "forward"}, {"inplace": True}):
            found_loss, found = run_dense(op, used, grad_scale=2.0**14, **fields, **how)
            assert same(loss, found_loss)
            assert same(gradient, found), f"{fields} {how}"
    held = padding == 0 and dtype != torch.float32 and multiprocessors(torch.cuda.current_device()) > 0
    assert len(calls) == (6 if held else 0)


def test_more_than_two_to_the_31_elements() -> None:
    rows, vocab = 16400, 131072
    if torch.cuda.mem_get_info()[0] < 20e9:
        pytest.skip("needs 20 GB of device memory")
    logits = torch.zeros(rows, vocab, dtype=torch.float16, device="cuda")
    logits[-1] = logits_of(1, vocab, dtype=torch.float16)[0]
    ids = torch.full((rows,), vocab - 1, device="cuda")
    active = torch.ones(rows, dtype=torch.bool, device="cuda")
    whole = states(logits, ids, active)
    assert same(whole[:, -1:], states(logits[-1:], ids[-1:], active[-1:]))


def test_many_tokens() -> None:
    batch = batch_of(2, 70000, 33, torch.float32)
    native = run_layout(batch, 1, 1, op=DistributedGRPOLossOp()).quantities()
    ours = run_layout(batch, 1, 1, op=TritonDistributedGRPOLossOp()).quantities()
    assert torch.allclose(ours["loss"], native["loss"], rtol=1e-5)
    assert torch.allclose(ours["grad_policy_logits"], native["grad_policy_logits"], rtol=1e-4, atol=1e-9)


def test_stage_by_stage_gives_the_bits_of_the_joined_program() -> None:
    batch = batch_of(8, 600, 1003, torch.float32, padding=21)
    joined = run_layout(batch, 2, 2, op=TritonDistributedGRPOLossOp()).quantities()
    steps = TritonDistributedGRPOLossOp(replace(TRITON_STAGES, program=None))
    apart = run_layout(batch, 1, 1, op=steps).quantities()
    drifted = [key for key, value in apart.items() if not same(value, joined[key])]
    assert not drifted


@pytest.mark.parametrize("case", [case for case in load_cases() if case.expected], ids=lambda case: case.name)
def test_case_files(case: Case) -> None:
    batch = case_batch(case).to(torch.device("cuda"))
    found = run_layout(batch, 1, 1, op=TritonDistributedGRPOLossOp()).quantities()
    on_host = {name: value.cpu() for name, value in found.items()}
    assert mismatches(case, as_actual(on_host)) == []
