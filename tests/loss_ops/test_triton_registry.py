"""Where the Triton backends are offered, and that asking for one by name never gives another."""

import pytest
import torch

from grpo_contract import GRPOLossContract, InputError
from loss_ops import kernel_registry

pytest.importorskip("triton")
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
