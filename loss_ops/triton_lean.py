"""The short way through a call: what a checked call may skip, and results that are read on demand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loss_ops.gather import Program
from loss_ops.inputs import LossInputs
from loss_ops.loss_call import LossCall
from loss_ops.loss_program import LossState, Observer, loss_program
from loss_ops.result import ClipCounts, GRPOLossResult
from loss_ops.stages import Stages


def call_form(call: LossCall) -> tuple[Any, ...]:
    """All that `LossCall.structure_problems` looks at beside contract and sharding."""
    tensors = (
        call.policy_local_logits,
        call.action_ids,
        call.old_logps,
        call.rewards,
        call.completion_mask,
        call.ref_local_logits,
    )
    return (
        call.group_sizes,
        *[(t.shape, t.dtype, t.device) if isinstance(t, Tensor) else type(t) for t in tensors],
    )


def unchecked_program(
    call: LossCall, stages: Stages, grad_scale: float, observe: Observer | None
) -> Program[tuple[LossInputs, LossState]]:
    """`checked_program` without its checks."""
    inputs = lean_inputs(call)
    state = yield from loss_program(inputs, stages, grad_scale=grad_scale, observe=observe)
    return inputs, state


def lean_inputs(call: LossCall) -> LossInputs:
    """`LossCall.inputs` where a tensor that has the right shape and type already is taken as it is."""
    shape = (call.sharding.num_local_sequences, call.contract.geometry.padded_seq_len)
    mask, ref = call.completion_mask, call.ref_local_logits
    if mask is None or mask.dtype is not torch.bool:
        return call.inputs()
    return LossInputs(
        _rows(call.policy_local_logits),
        None if ref is None else _rows(ref),
        _slots(call.action_ids if call.action_ids.dtype is torch.int64 else call.action_ids.long(), shape),
        _slots(call.old_logps, shape),
        _constant(call.rewards),
        _slots(mask, shape),
        call.contract,
        call.sharding,
    )


def _constant(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _rows(logits: Tensor) -> Tensor:
    plain = _constant(logits)
    return plain if plain.dim() == 2 else plain.flatten(0, -2)


def _slots(tensor: Tensor, shape: tuple[int, int]) -> Tensor:
    plain = _constant(tensor)
    return plain if plain.shape == shape else plain.reshape(shape)


class LazyResult(GRPOLossResult):
    """A `GRPOLossResult` whose tensors beside the loss are taken from the state when they are asked for."""

    def __init__(self, state: LossState, loss: Tensor, provenance: dict[str, Any]) -> None:
        self.__dict__.update(_state=state, loss=loss, provenance=provenance)

    _state: LossState

    @property
    def policy_loss(self) -> Tensor:
        """Normalized policy loss."""
        return self._state.scalars.policy_loss

    @property
    def kl(self) -> Tensor:
        """Normalized KL."""
        return self._state.scalars.kl

    @property
    def per_sequence_policy(self) -> Tensor:
        """[B] policy totals."""
        return self._state.totals_B.policy

    @property
    def per_sequence_kl(self) -> Tensor:
        """[B] KL totals."""
        return self._state.totals_B.kl

    @property
    def per_sequence_active_tokens(self) -> Tensor:
        """[B] counts."""
        return self._state.totals_B.active_tokens

    @property
    def advantages(self) -> Tensor:
        """[B] advantages."""
        return self._state.advantages_B

    @property
    def clip_counts(self) -> ClipCounts:
        """Batch counts."""
        return GRPOLossResult.of(self._state, self.loss, {}).clip_counts
