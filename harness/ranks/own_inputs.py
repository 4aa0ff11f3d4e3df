"""Inputs that an op may write into: it is given copies, and what it has overwritten is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from harness.comparing.ulp import raw_bits
from loss_ops.batch import GlobalBatch
from loss_ops.loss_call import LossCall

Inputs = TypeVar("Inputs", GlobalBatch, LossCall)


def own_copy(inputs: Inputs) -> Inputs:
    """The same on tensors of its own: an op that writes into its inputs must not change those of others."""
    tensors: dict[str, Any] = {name: value for name, value in vars(inputs).items() if isinstance(value, Tensor)}
    return replace(inputs, **{name: value.detach().clone() for name, value in tensors.items()})


def overwritten(given: Inputs, used: Inputs) -> list[str]:
    """A line for each input that holds other bits than it was given with."""
    return [
        f"the op overwrites its input {name}"
        for name, value in vars(given).items()
        if isinstance(value, Tensor) and not _same_bits(value, getattr(used, name))
    ]


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(raw_bits(one), raw_bits(other))
