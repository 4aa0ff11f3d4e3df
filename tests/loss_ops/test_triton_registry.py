"""Where the Triton backends are offered, and that asking for one by name never gives another."""

from typing import Any

import pytest
import torch

from grpo_contract import GRPOLossContract, InputError
from loss_ops import kernel_registry
from loss_ops.checked_program import Checks
from loss_ops.gather import Program
from loss_ops.loss_call import LossCall

pytest.importorskip("triton")

from loss_ops.triton_loss import TritonDistributedGRPOLossOp

OPS = ("grpo_loss", "ratio_kl")


def contract() -> GRPOLossContract:
    return GRPOLossContract.for_batch(num_sequences=2, padded_seq_len=2, vocab_size=32, samples_per_prompt=2)


@pytest.mark.parametrize("name", OPS)
def test_cuda_prefers_triton_and_cpu_native(name: str) -> None:
    assert type(kernel_registry.get_op(name, device="cuda")).__name__.startswith("Triton")
    assert type(kernel_registry.get_op(name, device="cpu")).__name__.startswith("Native")


def test_sharded_op() -> None:
    on_cuda = kernel_registry.get_loss_op(contract(), device="cuda")
    assert on_cuda.provenance["backend"] == "triton"
    on_cpu = kernel_registry.get_loss_op(contract(), device="cpu")
    assert on_cpu.provenance["backend"] == "native"
    assert "TRITON_INTERPRET" in on_cpu.provenance["refused"]["triton"]


def test_an_explicit_request_never_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InputError, match="TRITON_INTERPRET"):
        kernel_registry.get_loss_op(contract(), device="cpu", backend="triton")


def test_interpreted_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert kernel_registry.get_loss_op(contract(), device="cpu").provenance["backend"] == "native"
    named = kernel_registry.get_loss_op(contract(), device="cpu", backend="triton")
    assert named.provenance["backend"] == "triton"


def test_launch_configuration_is_part_of_the_numeric_identity() -> None:
    op = kernel_registry.get_loss_op(contract(), device="cuda").op
    assert "tile_warps" in op.identity
    assert contract().numeric_fingerprint(op.launch) != contract().numeric_fingerprint()


def test_cpu_tensors_are_refused_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    op = kernel_registry.get_op("grpo_loss", device="cuda")
    logits = torch.zeros(2, 2, 32)
    with pytest.raises(InputError, match="interpreter"):
        op(
            logits,
            logits,
            torch.zeros(2, 2, dtype=torch.long),
            torch.zeros(2, 2),
            torch.zeros(2),
            samples_per_prompt=2,
        )


@pytest.mark.parametrize("how", [{}, {"gradient": "forward"}, {"inplace": True}])
def test_a_refusal_travels_through_preflight(monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]) -> None:
    """A rank whose device, logits or options are refused must still reach the others."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    seen: list[Checks] = []

    class Watched(TritonDistributedGRPOLossOp):
        def _program(self, call: LossCall, checks: Checks, *rest: Any) -> Program[Any]:
            seen.append(checks)
            return super()._program(call, checks, *rest)

    leaf, held = torch.zeros(2, 2, 32).requires_grad_(), contract()
    with pytest.raises(InputError) as caught:
        Watched().apply(
            leaf, torch.zeros(2, 2).long(), torch.zeros(2, 2), torch.zeros(2), contract=held,
            ref_local_logits=leaf.detach().clone(), **how,
        )  # fmt: skip
    (checks,) = seen
    assert checks.preflight
    assert caught.value.problems == checks.problems
    codes = ["input.device", *(["input.inplace"] if "inplace" in how else [])]
    assert [problem.code for problem in checks.problems] == codes


def test_an_unknown_gradient_is_refused() -> None:
    values = (torch.zeros(2, 2).long(), torch.zeros(2, 2), torch.zeros(2))
    how: dict[str, Any] = {"gradient": "sideways", "ref_local_logits": torch.zeros(2, 2, 32)}
    with pytest.raises(InputError, match="gradient: expected backward or forward, got 'sideways'"):
        TritonDistributedGRPOLossOp().apply(torch.zeros(2, 2, 32), *values, contract=contract(), **how)


def test_preflight_compares_when_the_gradient_is_written() -> None:
    op = TritonDistributedGRPOLossOp()
    forward, inplace = op._writing("forward", True), op._writing("inplace", True)
    assert len({each._compared for each in (op, forward, inplace)}) == 3
    assert len({each.identity for each in (op, forward, inplace)}) == 1
    assert len({id(each._agreed) for each in (op, forward, inplace)}) == 3
