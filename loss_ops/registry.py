"""The registry: which ops exist, which backend serves a call, and why others do not. Loads nothing until asked."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from grpo_contract import GRPOLossContract, InputError, Problem

ALL_DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Capabilities:
    """Where a backend runs. `requires` names modules that must be importable.

    `interpreted` adds the CPU for an explicit request under TRITON_INTERPRET=1.
    """

    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = ALL_DTYPES
    requires: tuple[str, ...] = ()
    interpreted: bool = False

    def refusal(self, device: str, dtype: str | None, *, explicit: bool = False) -> str | None:
        """Why this backend cannot serve, or None."""
        missing = [name for name in self.requires if importlib.util.find_spec(name) is None]
        if missing:
            return f"needs {', '.join(missing)}, not installed"
        if self.interpreted and device == "cpu":
            if explicit and os.environ.get("TRITON_INTERPRET") == "1":
                return None
            return "on the CPU only by name and in Triton's interpreter (TRITON_INTERPRET=1)"
        if device not in self.devices:
            return f"runs on {', '.join(self.devices)}, not on {device}"
        if dtype is not None and dtype not in self.dtypes:
            return f"takes {', '.join(self.dtypes)} logits, not {dtype}"
        return None


@dataclass(frozen=True)
class Backend:
    """One implementation of an op: `target` is "module:attribute", a class or function without arguments."""

    name: str
    target: str
    capabilities: Capabilities = field(default_factory=Capabilities)

    def load(self) -> Any:
        """Import and build it."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)()


@dataclass(frozen=True)
class Dispatched:
    """An op and how it was chosen: `provenance` holds op, backend, device and the refusals of others."""

    op: Any
    provenance: dict[str, Any]


class KernelRegistry:
    """Ops by name, each with backends in order of preference."""

    def __init__(self) -> None:
        self._backends: dict[str, list[Backend]] = {}

    def register(self, op: str, backend: Backend, *, prefer: bool = False) -> None:
        """Add a backend of `op`, last in preference or first. A name may be taken once."""
        known = self._backends.setdefault(op, [])
        if any(each.name == backend.name for each in known):
            raise _refused("backend", "a new name", f"{backend.name!r}, already registered for {op}")
        known.insert(0 if prefer else len(known), backend)

    def register_loss_backend(
        self, name: str, target: str, capabilities: Capabilities | None = None, *, prefer: bool = False
    ) -> None:
        """Add a backend of the sharded loss op."""
        self.register(LOSS_OP, Backend(name, target, capabilities or Capabilities()), prefer=prefer)

    def get_op(
        self, name: str, backend: str | None = None, *, device: str | None = None, dtype: str | None = None
    ) -> Any:
        """A dense single-device op, such as `grpo_loss` or `ratio_kl`. An explicit backend never falls back.

        Without a device, the op serves each call by the device of its logits.

        Raises InputError for an unknown op or backend, or one that cannot serve this device and dtype.
        """
        if device is not None:
            return self._dispatch(name, str(device).partition(":")[0], dtype, backend).op
        if not _has_cuda():
            return self._dispatch(name, "cpu", dtype, backend).op
        if backend is not None:
            return self._dispatch(name, "cuda", dtype, backend).op
        return _ByDevice(self, self._dispatch(name, "cuda", dtype, None).op, name)

    def get_loss_op(
        self, contract: GRPOLossContract, *, device: Any = "cpu", backend: str | None = None
    ) -> Dispatched:
        """The sharded loss op for this contract and device; `dispatched.op.apply(...)` runs it."""
        kind = str(device).partition(":")[0]
        return self._dispatch(LOSS_OP, kind, contract.logprob.dtype.value, backend)

    def describe(self, device: str = "cpu") -> list[dict[str, str]]:
        """One row per op and backend: op, backend, and `available` or the reason why not."""
        return [
            {"op": op, "backend": each.name, "status": each.capabilities.refusal(device, None) or "available"}
            for op, backends in self._backends.items()
            for each in backends
        ]

    def refusal(self, op: str, backend: str, *, device: str, dtype: str | None = None) -> str | None:
        """Why `backend`, asked for by name, cannot serve this device and dtype, or None. Loads nothing.

        Raises InputError for an unknown op or backend.
        """
        return self._candidates(op, backend)[0].capabilities.refusal(device, dtype, explicit=True)

    def _dispatch(self, op: str, device: str, dtype: str | None, wanted: str | None) -> Dispatched:
        candidates = self._candidates(op, wanted)
        refusals: dict[str, str] = {}
        for each in candidates:
            refusal = each.capabilities.refusal(device, dtype, explicit=wanted is not None)
            if refusal is None:
                provenance = {"op": op, "backend": each.name, "device": device, "refused": refusals}
                loaded = each.load()
                if hasattr(loaded, "dispatch"):
                    loaded.dispatch = provenance
                return Dispatched(loaded, provenance)
            refusals[each.name] = refusal
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise _refused("backend", f"a backend of {op} for {device} and {dtype or 'any dtype'}", reasons)

    def _candidates(self, op: str, wanted: str | None) -> list[Backend]:
        if op not in self._backends:
            raise _refused("op", _choice(self._backends, op), repr(op))
        known = self._backends[op]
        if wanted is None:
            return known
        named = [each for each in known if each.name == wanted]
        if not named:
            raise _refused("backend", _choice([each.name for each in known], wanted), repr(wanted))
        return named


class _ByDevice:
    """A dense op that serves CUDA logits by one backend and others by the one for their device."""

    def __init__(self, registry: KernelRegistry, on_cuda: Any, name: str) -> None:
        self._ops = {"cuda": on_cuda}
        self._registry, self._name = registry, name

    def __call__(self, policy_logits: Any, *args: Any, **call: Any) -> Any:
        """The op's call."""
        device = policy_logits.device.type
        if device not in self._ops:
            self._ops[device] = self._registry.get_op(self._name, device=device)
        return self._ops[device](policy_logits, *args, **call)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _choice(names: Iterable[str], wanted: str) -> str:
    options = list(names)
    near = difflib.get_close_matches(wanted, options, n=1)
    return f"one of {', '.join(options)}" + (f" (did you mean {near[0]}?)" if near else "")


def _refused(where: str, expected: str, got: str) -> InputError:
    return InputError(Problem(f"input.{where}", where, expected, got))


LOSS_OP = "distributed_grpo_loss"
kernel_registry = KernelRegistry()
TRITON = Capabilities(devices=("cuda",), requires=("triton",), interpreted=True)
kernel_registry.register("grpo_loss", Backend("triton", "loss_ops.triton_loss:TritonGRPOLossOp", TRITON))
kernel_registry.register("grpo_loss", Backend("native", "loss_ops.native_loss:NativeGRPOLossOp"))
kernel_registry.register("ratio_kl", Backend("triton", "loss_ops.triton_ratio_kl:TritonRatioKLOp", TRITON))
kernel_registry.register("ratio_kl", Backend("native", "loss_ops.native_ratio_kl:NativeRatioKLOp"))
kernel_registry.register(
    "vocab_parallel_logprob", Backend("native", "loss_ops.vocab_logprob:VocabParallelLogprobOp")
)
kernel_registry.register_loss_backend("triton", "loss_ops.triton_loss:TritonDistributedGRPOLossOp", TRITON)
kernel_registry.register_loss_backend("native", "loss_ops.distributed_loss:DistributedGRPOLossOp")
