"""The op under test: one of ours by name, or the user's as `package.module:attribute`."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from grpo_contract import GRPOLossContract, InputError, Problem
from harness.own_ops.loss_signature import CALLABLE, OP, call_problem
from harness.system.error_text import named
from loss_ops import kernel_registry
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.quantities import GRADIENT, REPLICATED

OWN = "grpo_loss"
PLAIN = "a dense tensor of real numbers"
BY_PLACE = ("loss", "policy_loss", "kl")
"""The quantities in a tuple without names."""


class LossOp(Protocol):
    """What the harness calls: `apply` with the arguments of `DistributedGRPOLossOp.apply`, and any result."""

    @property
    def apply(self) -> Callable[..., Any]:
        """One rank's forward."""
        ...


def resolve(name: str, backend: str | None, contract: GRPOLossContract, device: str) -> LossOp:
    """The op called `name`: `grpo_loss`, a backend of it such as `native`, or `package.module:attribute`.

    A class is built without arguments; a plain function, or a torch module, stands for `apply`. Raises
    InputError when there is no such op, or when it cannot be called as an op is.
    """
    if ":" not in name:
        wanted = backend if name == OWN else name
        op: LossOp = kernel_registry.get_loss_op(contract, device=device, backend=wanted).op
        return op
    return _foreign(name)


def _foreign(name: str) -> LossOp:
    module, _, attribute = name.partition(":")
    try:
        found = attrgetter(attribute)(importlib.import_module(module))
        held: Any = found() if inspect.isclass(found) else found
    except (OSError, MemoryError):
        raise  # the machine's fault, not the op's
    except Exception as error:
        got = f"{name}, which raises {named(error)}"
        raise InputError(Problem("input.op", "--op", "an importable package.module:attribute", got)) from error
    op = held if _has_loss_as_apply(held) else _FunctionOp(held)
    if not callable(op.apply):
        raise InputError(Problem("input.op", "--op", OP, f"{name}, a {type(held).__name__}"))
    called = held.forward if op is not held and isinstance(held, nn.Module) else op.apply
    if why := _misfit(called):
        raise InputError(Problem("input.op", "--op", CALLABLE, f"{name}, which takes {why}"))
    return op


def _has_loss_as_apply(held: Any) -> bool:
    """Whether `apply` is the loss: that of a torch module, unless its own, takes a function to all its parts."""
    if not isinstance(held, nn.Module):
        return hasattr(held, "apply")
    return getattr(held.apply, "__func__", None) is not nn.Module.apply and _misfit(held.apply) is None


def _misfit(function: Callable[..., Any]) -> str | None:
    """Why a function cannot be called as an op is, after its signature; one without a signature may be."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    why = call_problem(signature)
    return None if why is None else f"{signature}: {why}"


class _FunctionOp:
    def __init__(self, function: Any) -> None:
        self.apply = function


def is_of_our_class(op: Any) -> bool:
    """Whether calls of `op` are ours, which check themselves and leave their inputs alone; no user's subclass."""
    return isinstance(op, DistributedGRPOLossOp) and type(op).__module__.partition(".")[0] == "loss_ops"


def is_ours(op: Any) -> bool:
    """Whether `op` is ours and unchanged: what is measured of the native op's sums is then true of its own."""
    return is_of_our_class(op) and op.stages is op.own_stages


def launch_of(op: Any) -> dict[str, Any]:
    """The launch configuration that fixes an op's bits beside the contract, as JSON values; empty without one."""
    held = getattr(op, "launch", None)
    return json.loads(json.dumps(dict(held), default=str)) if isinstance(held, Mapping) else {}


def loss_of(result: Any) -> Any:
    """The loss of a foreign result: the attribute or key `loss`, or the first of a tuple; None without one."""
    if isinstance(result, Mapping):
        return result.get("loss")
    if _is_nameless(result):
        return result[0] if result else None
    return getattr(result, "loss", None)


def _is_nameless(result: Any) -> bool:
    return isinstance(result, tuple) and not hasattr(result, "loss")


def quantities_of(result: Any, gradient: Tensor) -> dict[str, Tensor]:
    """The quantities that a foreign result offers: attributes, keys, or `loss, policy_loss, kl` in a tuple.

    Copies: an op may use its output buffers again. Raises InputError for a quantity that is no tensor, and for
    a key that looks like a quantity's name misspelt: neither would be compared.
    """
    if _is_nameless(result):
        result = dict(zip(BY_PLACE, result, strict=False))
    held = result if isinstance(result, Mapping) else {name: getattr(result, name, None) for name in REPLICATED}
    offered = {name: held.get(name) for name in REPLICATED}
    tensors = {name: value for name, value in offered.items() if isinstance(value, Tensor)}
    tensors[GRADIENT] = gradient
    problems = [*_misspelt(held), *_not_tensors(held), *not_plain(tensors)]
    if problems:
        raise InputError(problems)
    return own_copies(tensors)


def unknown_keys(result: Any, known: Sequence[str] = REPLICATED) -> list[str]:
    """A line that names the tensors of a mapping or tuple which are no quantities, and so are not compared."""
    held, kind = (result if isinstance(result, Mapping) else {}), "names"
    if _is_nameless(result):
        held = {f"tuple element {place}": value for place, value in enumerate(result, start=1)}
        held, known, kind = dict(list(held.items())[len(BY_PLACE) :]), BY_PLACE, "first elements"
    names = [str(key) for key, value in held.items() if isinstance(value, Tensor) and key not in known]
    told = f"the {kind} compared are {', '.join(known)}"
    return [f"not compared are the op's {', '.join(names)}: {told}"] if names else []


def own_copies(quantities: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same values in memory of their own."""
    return {name: value.detach().clone() for name, value in quantities.items()}


def _misspelt(held: Mapping[Any, Any]) -> list[Problem]:
    plain = {_plain(name): name for name in (*REPLICATED, GRADIENT)}
    return [
        Problem("input.result", "the op's result", f"the key {plain[_plain(key)]}", str(key))
        for key in held
        if _plain(key) in plain and key != plain[_plain(key)]
    ]


def _plain(name: object) -> str:
    return str(name).lower().replace("_", "").replace("-", "")


def _not_tensors(held: Mapping[Any, Any]) -> list[Problem]:
    return [
        Problem("input.result", f"the op's {name}", "a tensor, which can be compared", type(held[name]).__name__)
        for name in REPLICATED
        if held.get(name) is not None and not isinstance(held[name], Tensor)
    ]


def not_plain(tensors: Mapping[str, Tensor]) -> list[Problem]:
    """Tensors of a result whose elements cannot be compared."""
    return [
        Problem("input.result", f"the op's {name}", PLAIN, f"a tensor {odd}")
        for name, value in tensors.items()
        if (odd := oddity(value))
    ]


def oddity(value: Tensor) -> str:
    """Why no elements can be compared: without values, complex, or not stored one by one; empty where they can."""
    odd = [
        "on the device meta" if value.is_meta else "",
        f"of {value.dtype}" if value.is_complex() or value.is_quantized else "",
        f"in the layout {value.layout}" if value.layout is not torch.strided else "",
        "that is nested" if value.is_nested else "",
    ]
    return ", ".join(filter(None, odd))


def shows_stages(op: Any) -> bool:
    """Whether `apply` takes `observe`."""
    try:
        return "observe" in inspect.signature(op.apply).parameters
    except (TypeError, ValueError):
        return False


def stages_of(result: Any) -> dict[str, Tensor]:
    """The stages that a result carries as an attribute or key `stages`; empty without one."""
    held = result.get("stages") if isinstance(result, Mapping) else getattr(result, "stages", None)
    return {name: value.detach() for name, value in held.items()} if isinstance(held, Mapping) else {}
