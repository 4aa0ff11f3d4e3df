"""The same promises on a CUDA device, which virtual ranks share."""

from __future__ import annotations

import pytest
import torch

from grpo_contract import GRPOLossContract, ShardingSpec
from harness.workloads.language_training import LanguageSettings, LanguageWorkload
from harness.workloads.tiny_policy import start_table
from harness.workloads.tiny_training import TinyWorkload
from harness.workloads.token_task import TokenTask
from harness.workloads.training import Recipe
from harness.workloads.uniform_stream import Mt19937Stream
from loss_ops import kernel_registry
from loss_ops.fixed_batch import fix_batch, rank_call
from loss_ops.real_ranks import RealRanks
from support.small_model import one_token, several_tokens, small_model
from support.training_runs import digests_by_rank

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("backend", ["native", "triton"])
def test_tiny_policy_at_every_degree(backend: str) -> None:
    def make() -> TinyWorkload:
        return TinyWorkload(Mt19937Stream(0), table=start_table("cuda"), backend=backend)

    alone = digests_by_rank(make, 1, range(1, 101))[0]
    for degree in (2, 4, 8):
        assert digests_by_rank(make, degree, range(1, 101)) == [alone] * degree


@pytest.mark.parametrize("task", [several_tokens(), one_token()], ids=["several", "one"])
def test_fused_and_in_place_at_every_degree(task: TokenTask) -> None:
    def make() -> LanguageWorkload:
        settings = LanguageSettings(samples=4, block=2, learning_rate=1e-2, backend="triton")
        return LanguageWorkload(small_model().cuda(), settings, task)

    alone = digests_by_rank(make, 1, range(1, 4), Recipe(micro_batch=2))[0]
    for degree in (2, 4):
        assert digests_by_rank(make, degree, range(1, 4), Recipe(micro_batch=2)) == [alone] * degree


@pytest.mark.parametrize("options", [{}, {"gradient": "forward"}, {"inplace": True}], ids=str)
def test_parts_of_the_fused_op_give_the_bits_of_the_whole(options: dict[str, object]) -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    shape, columns = (8, 32), 1000
    logits, reference = (torch.randn(*shape, columns, generator=draw, device="cuda") for _ in range(2))
    ids = torch.randint(0, columns, shape, generator=draw, device="cuda")
    old = -torch.rand(shape, generator=draw, device="cuda") * 6
    rewards = torch.rand(8, generator=draw, device="cuda")
    mask = torch.rand(shape, generator=draw, device="cuda") < 0.7
    contract = GRPOLossContract.for_batch(
        num_sequences=8, padded_seq_len=32, vocab_size=columns, samples_per_prompt=4
    )
    op = kernel_registry.get_loss_op(contract, device="cuda", backend="triton").op
    leaf = logits.clone().requires_grad_()
    whole = op.apply(leaf, ids, old, rewards, contract=contract, completion_mask=mask, ref_local_logits=reference)
    whole.loss.backward()
    assert leaf.grad is not None
    call = rank_call(
        ids, old, rewards, contract=contract, sharding=ShardingSpec.even(1, 1, contract=contract),
        completion_mask=mask,
    )  # fmt: skip
    fixed = RealRanks().run(fix_batch(call))
    for size in (1, 2, 8):
        for start in range(0, 8, size):
            rows = slice(start, start + size)
            source = logits[rows].clone().requires_grad_()
            part = fixed.apply(op, source * 1.0, start=start, ref_local_logits=reference[rows], **options)
            part.result.loss.backward()
            assert torch.equal(source.grad, leaf.grad[rows])
            assert torch.equal(part.result.per_sequence_policy[rows], whole.per_sequence_policy[rows])
