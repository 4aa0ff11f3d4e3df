"""The registry: names, backends, and never another one than was asked for."""

from collections.abc import Callable

import pytest

from grpo_contract import GRPOLossContract, InputError
from loss_ops import kernel_registry
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.native_loss import NativeGRPOLossOp
from loss_ops.native_ratio_kl import NativeRatioKLOp
from loss_ops.registry import LOSS_OP, Backend, Capabilities, KernelRegistry
from loss_ops.vocab_logprob import VocabParallelLogprobOp
from support.batches import small

NATIVE = "loss_ops.native_loss:NativeGRPOLossOp"


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    return str(caught.value)


@pytest.fixture
def registry() -> KernelRegistry:
    """An op with three backends: one that needs a module nobody has, one for CUDA, one that serves."""
    made = KernelRegistry()
    made.register("op", Backend("missing", "nowhere:Op", Capabilities(requires=("no_such_module_here",))))
    made.register("op", Backend("cuda_only", "nowhere:Op", Capabilities(devices=("cuda",), dtypes=("float16",))))
    made.register("op", Backend("native", NATIVE))
    return made


@pytest.fixture
def contract() -> GRPOLossContract:
    return small().contract


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("grpo_loss", NativeGRPOLossOp),
        ("ratio_kl", NativeRatioKLOp),
        ("vocab_parallel_logprob", VocabParallelLogprobOp),
        ("distributed_grpo_loss", DistributedGRPOLossOp),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_known_ops_load(name: str, kind: type, device: str) -> None:
    assert type(kernel_registry.get_op(name, "native", device=device)) is kind
    assert type(kernel_registry.get_op(name, device=device)) is kind


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_numbered_device_is_a_device(device: str) -> None:
    assert type(kernel_registry.get_op("grpo_loss", "native", device=device)) is NativeGRPOLossOp


def test_the_sharded_op_says_how_it_was_chosen(contract: GRPOLossContract) -> None:
    dispatched = kernel_registry.get_loss_op(contract)
    assert isinstance(dispatched.op, DistributedGRPOLossOp)
    assert dispatched.provenance["backend"] == "native"
    assert (dispatched.provenance["op"], dispatched.provenance["device"]) == (LOSS_OP, "cpu")


def test_names_that_are_none_come_with_a_suggestion(contract: GRPOLossContract) -> None:
    text = refusal(lambda: kernel_registry.get_op("grpo_los"))
    assert text.startswith("invalid input: op: expected one of grpo_loss, ")
    assert text.endswith("(did you mean grpo_loss?), got 'grpo_los'")
    text = refusal(lambda: kernel_registry.get_loss_op(contract, backend="natve"))
    assert "backend: expected one of " in text
    assert text.endswith("(did you mean native?), got 'natve'")
    assert "did you mean" not in refusal(lambda: kernel_registry.get_op("zzz"))


def test_the_first_that_can_serve_does(registry: KernelRegistry) -> None:
    dispatched = registry._dispatch("op", "cpu", None, None)
    assert isinstance(dispatched.op, NativeGRPOLossOp)
    assert dispatched.provenance["refused"] == {
        "missing": "needs no_such_module_here, not installed",
        "cuda_only": "runs on cuda, not on cpu",
    }


@pytest.mark.parametrize(
    ("backend", "options", "reason"),
    [
        ("missing", {}, "missing: needs no_such_module_here, not installed"),
        ("cuda_only", {}, "cuda_only: runs on cuda, not on cpu"),
        (
            "cuda_only",
            {"device": "cuda", "dtype": "float32"},
            "cuda_only: takes float16 logits, not float32",
        ),
    ],
)
def test_an_explicit_backend_never_falls_back(
    registry: KernelRegistry, backend: str, options: dict[str, str], reason: str
) -> None:
    text = refusal(lambda: registry.get_op("op", backend, **options))
    assert text.startswith("invalid input: backend: expected a backend of op for ")
    assert text.endswith(reason)


def test_nobody_can_serve(registry: KernelRegistry) -> None:
    text = refusal(lambda: registry.get_op("op", device="tpu"))
    assert "expected a backend of op for tpu and any dtype" in text
    assert "native: runs on cpu, cuda, not on tpu" in text
    assert "missing: " in text


def test_a_name_is_taken_once(registry: KernelRegistry) -> None:
    text = refusal(lambda: registry.register("op", Backend("native", NATIVE)))
    assert text == "invalid input: backend: expected a new name, got 'native', already registered for op"
    registry.register("other", Backend("native", NATIVE))
    registry.register_loss_backend("mine", "loss_ops.distributed_loss:DistributedGRPOLossOp")
    refusal(lambda: registry.register_loss_backend("mine", NATIVE))


def test_a_preferred_backend_comes_first(registry: KernelRegistry, contract: GRPOLossContract) -> None:
    target = "loss_ops.distributed_loss:DistributedGRPOLossOp"
    registry.register_loss_backend("plain", target)
    registry.register_loss_backend("better", target, prefer=True)
    assert registry.get_loss_op(contract).provenance["backend"] == "better"
    assert registry.get_loss_op(contract, backend="plain").provenance["backend"] == "plain"


def test_describe_lists_every_backend(registry: KernelRegistry) -> None:
    assert registry.describe() == [
        {"op": "op", "backend": "missing", "status": "needs no_such_module_here, not installed"},
        {"op": "op", "backend": "cuda_only", "status": "runs on cuda, not on cpu"},
        {"op": "op", "backend": "native", "status": "available"},
    ]
