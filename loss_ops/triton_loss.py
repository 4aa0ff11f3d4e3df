"""The GRPO loss ops on Triton kernels: sharded, and dense on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, Problem
from loss_ops.checked_program import Checks
from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.gather import Program
from loss_ops.identity_cache import IdentityCache
from loss_ops.inputs import LossInputs
from loss_ops.loss_call import LossCall
from loss_ops.loss_program import LossState, Observer
from loss_ops.native_loss import NativeGRPOLossOp, contract_for_dense
from loss_ops.result import GRPOLossResult
from loss_ops.stages import Stages
from loss_ops.triton_launch import LAUNCH, triton_refusal
from loss_ops.triton_lean import LazyResult, call_form, unchecked_program
from loss_ops.triton_program import Write
from loss_ops.triton_stages import TRITON_STAGES, program

Gradient = Literal["backward", "forward"]


class TritonDistributedGRPOLossOp(DistributedGRPOLossOp):
    """The sharded op on Triton kernels; `launch` is their configuration and part of the numeric identity."""

    own_stages = TRITON_STAGES

    def __init__(
        self,
        stages: Stages = TRITON_STAGES,
        *,
        backend: str = "triton",
        launch: dict[str, Any] | None = None,
        on_collective: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(
            stages, backend=backend, launch=LAUNCH if launch is None else launch, on_collective=on_collective
        )
        self._write: Write = "backward"
        self._forms: IdentityCache[set[Any]] = IdentityCache()
        self._writers: dict[tuple[str, bool], TritonDistributedGRPOLossOp] = {}

    def apply(
        self,
        policy_local_logits: Tensor,
        *args: Any,
        gradient: Gradient = "backward",
        inplace: bool = False,
        problems: Sequence[Problem] = (),
        **call: Any,
    ) -> GRPOLossResult:
        """As `DistributedGRPOLossOp.apply`, with a choice of when the gradient is written. The bits are the same.

        "backward": by the backward, from the logits, which must not change in between.
        "forward": by the forward; at TP degree 1 one kernel does it all. Costs the gradient's memory from then
        on. An incoming gradient other than 1 is exact: the backward computes the gradient again.
        `inplace` (with "forward" implied): the gradient replaces the logits, and no memory is added. Their
        values are gone: any other use of them in the backward is refused by autograd, a leaf that requires grad
        and logits that share memory with the reference are refused here; a second backward, or an incoming
        gradient other than 1, is refused by the backward, which reads that scalar on the host. With
        `validate="off"` nothing is read: 0 and powers of two scale exactly, any other factor gives NaN
        throughout. Pass `grad_scale`. Ranks must agree in both.
        """
        found = [*problems, *_option_problems(policy_local_logits, gradient)]
        if gradient == "backward" and not inplace:
            return super().apply(policy_local_logits, *args, problems=found, **call)
        if inplace:
            found += _inplace_problems(policy_local_logits, call.get("ref_local_logits"))
        wait = call.get("validate", "full") != "off"
        writing = self._writing("inplace" if inplace else "forward", wait)
        result = DistributedGRPOLossOp.apply(writing, policy_local_logits, *args, problems=found, **call)
        if inplace:
            torch.autograd.graph.increment_version(policy_local_logits)
        return result

    def _program(
        self, call: LossCall, checks: Checks, grad_scale: float, observe: Observer | None
    ) -> Program[tuple[LossInputs, LossState]]:
        """Calls of a form that has passed its checks once, with nothing to read or exchange, go straight on."""
        if checks.validate != "off" or checks.preflight or checks.problems:
            return super()._program(call, checks, grad_scale, observe)
        form = self._forms.get((call.contract, call.sharding), _no_forms)
        key = (call_form(call), grad_scale)
        if key in form:
            return unchecked_program(call, self.stages, grad_scale, observe)
        return self._remembering(super()._program(call, checks, grad_scale, observe), form, key)

    @staticmethod
    def _remembering(
        program: Program[tuple[LossInputs, LossState]], form: set[Any], key: Any
    ) -> Program[tuple[LossInputs, LossState]]:
        outcome = yield from program
        form.add(key)
        return outcome

    def _result(self, state: LossState, loss: Tensor, provenance: dict[str, Any]) -> GRPOLossResult:
        return LazyResult(state, loss, provenance)

    @property
    def other_paths(self) -> dict[str, DistributedGRPOLossOp]:
        """The gradient written by the forward, at TP degree 1 in one kernel with the sums."""
        return {"gradient=forward": self._writing("forward", True)}

    @property
    def _compared(self) -> str:
        """When the gradient is written changes no bit, but what is gathered, and when."""
        return f"{self.identity} gradient={self._write}"

    def _writing(self, write: Literal["forward", "inplace"], wait: bool) -> TritonDistributedGRPOLossOp:
        found = self._writers.get((write, wait))
        if found is None:
            stages = replace(self.stages, program=partial(program, write=write, wait=wait))
            found = type(self)(stages, backend=self.backend, launch=self.launch, on_collective=self.on_collective)
            found._write = write
            self._writers[write, wait] = found
        return found


def _no_forms(*_: Any) -> set[Any]:
    return set()


def _option_problems(policy: Tensor, gradient: str) -> list[Problem]:
    found = []
    refusal = triton_refusal(policy.device.type) if isinstance(policy, Tensor) else None
    if refusal is not None:
        found.append(Problem("input.device", "policy_logits", "a device the kernels run on", refusal))
    if gradient not in get_args(Gradient):
        found.append(Problem("input.gradient", "gradient", " or ".join(get_args(Gradient)), repr(gradient)))
    return found


def _inplace_problems(policy: Tensor, reference: Tensor | None) -> list[Problem]:
    found: list[Problem] = []
    if not isinstance(policy, Tensor) or policy.dim() not in (2, 3):
        return found  # the call itself is refused
    if policy.is_leaf and policy.requires_grad:
        found.append(
            Problem("input.inplace", "policy_logits", "the output of a layer", "a leaf that requires grad")
        )
    if policy.stride(-1) != 1 or not _flattens(policy):
        found.append(
            Problem("input.inplace", "policy_logits", "rows of neighbouring columns", f"strides {policy.stride()}")
        )
    if isinstance(reference, Tensor) and _storage(reference) == _storage(policy):
        found.append(
            Problem("input.inplace", "ref_logits", "memory of its own", "the storage of the policy logits")
        )
    return found


def _flattens(logits: Tensor) -> bool:
    """Whether [S, T, V] is a view of [N, V] rows."""
    return logits.dim() == 2 or logits.stride(0) == logits.stride(1) * logits.shape[1] or logits.shape[0] == 1


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class TritonGRPOLossOp(NativeGRPOLossOp):
    """GRPO loss of a dense [B, T, V] batch on one device: the sharded Triton op's 1x1 layout, bit for bit."""

    sharded: TritonDistributedGRPOLossOp

    def __init__(self) -> None:
        self.sharded = TritonDistributedGRPOLossOp()

    def __call__(
        self,
        policy_logits: Tensor,
        ref_logits: Tensor | None,
        action_ids: Tensor,
        old_logps: Tensor,
        rewards: Tensor,
        completion_mask: Tensor | None = None,
        *,
        clip_eps: float = 0.2,
        beta: float = 0.04,
        samples_per_prompt: int | None = None,
        group_boundaries: tuple[int, ...] | list[int] | None = None,
        grad_scale: float = 1.0,
        validate: Any = "full",
        gradient: Gradient = "backward",
        inplace: bool = False,
        **contract_fields: Any,
    ) -> GRPOLossResult:
        """As `NativeGRPOLossOp`, with `gradient` and `inplace` as in `TritonDistributedGRPOLossOp.apply`.

        With `validate="off"` the host waits for nothing: an id outside the vocabulary then goes unnamed (its
        logit counts as 0), so validate at least the first batches.
        """
        boundaries = None if group_boundaries is None else tuple(group_boundaries)
        fields = {"clip_eps_low": clip_eps, "clip_eps_high": clip_eps, "beta": beta, **contract_fields}
        contract = _dense_contract(
            tuple(policy_logits.shape), policy_logits.dtype, samples_per_prompt, boundaries, tuple(fields.items())
        )
        return self.sharded.apply(
            policy_logits,
            action_ids,
            old_logps,
            rewards,
            contract=contract,
            completion_mask=completion_mask,
            ref_local_logits=ref_logits,
            grad_scale=grad_scale,
            validate=validate,
            preflight="off",
            gradient=gradient,
            inplace=inplace,
        )


@lru_cache(maxsize=128)
def _dense_contract(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    samples_per_prompt: int | None,
    group_boundaries: tuple[int, ...] | None,
    fields: tuple[tuple[str, Any], ...],
) -> GRPOLossContract:
    """One contract per shape and settings, so that what hangs on it is built once."""
    return contract_for_dense(
        torch.empty(shape, dtype=dtype, device="meta"),
        samples_per_prompt=samples_per_prompt,
        group_boundaries=group_boundaries,
        **dict(fields),
    )
