"""The sharded GRPO loss op."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from grpo_contract import GRPOLossContract, Problem, ShardingSpec
from loss_ops.checked_program import Checks, Validate, checked_program
from loss_ops.fixed_batch import FixedBatch
from loss_ops.gather import Program
from loss_ops.identity_cache import IdentityCache
from loss_ops.inputs import LossInputs
from loss_ops.loss_call import LossCall
from loss_ops.loss_program import LossState, Observer, gradient_of
from loss_ops.real_ranks import RealRanks, process_group
from loss_ops.result import GRPOLossResult
from loss_ops.stages import NATIVE_STAGES, Stages

Preflight = Literal["always", "once", "off"]
KEPT = 64
"""Contracts of a pair of groups that preflight="once" remembers."""


class DistributedGRPOLossOp:
    """GRPO loss over a TP x DP layout, with the same bits at every layout.

    `backend` and `launch` identify the kernels; ranks that differ in them are refused by preflight.
    `on_collective` is called with its purpose before every collective of this op. `own_stages` are those that its
    promise is made with.
    """

    own_stages: ClassVar[Stages] = NATIVE_STAGES

    def __init__(
        self,
        stages: Stages = NATIVE_STAGES,
        *,
        backend: str = "native",
        launch: dict[str, Any] | None = None,
        on_collective: Callable[[str], None] | None = None,
    ) -> None:
        self.stages = stages
        self.backend = backend
        self.launch = launch or {}
        self.on_collective = on_collective
        self.dispatch: dict[str, Any] = {}
        # By groups: fingerprints of the contracts that a preflight has passed.
        self._agreed: IdentityCache[OrderedDict[str, None]] = IdentityCache()
        self._fingerprints: IdentityCache[str] = IdentityCache()

    def apply(
        self,
        policy_local_logits: Tensor,
        action_ids: Tensor,
        old_logps: Tensor,
        rewards: Tensor,
        *,
        contract: GRPOLossContract,
        sharding: ShardingSpec | None = None,
        completion_mask: Tensor | None = None,
        ref_local_logits: Tensor | None = None,
        tp_group: Any = None,
        dp_group: Any = None,
        grad_scale: float = 1.0,
        validate: Validate = "full",
        preflight: Preflight = "always",
        observe: Observer | None = None,
        fixed: FixedBatch | None = None,
        problems: Sequence[Problem] = (),
    ) -> GRPOLossResult:
        """The loss of the whole batch from this rank's shard; gradients flow into `policy_local_logits` only.

        Shapes: logits [S, T, V] or [S * T, V], S owned sequences, T padded_seq_len, V owned columns, in the
        contract's dtype; action_ids, old_logps, completion_mask [S, T] or [S * T]; rewards [S]. Log-probabilities
        are natural logs at the contract's temperature. Masked slots may hold anything. Without `sharding` the
        call is the 1x1 layout. Groups are process groups or DeviceMesh axes.

        Order of reduction: columns of a tile, tiles in vocabulary order, slots of a sequence, sequences of the
        batch; each folded by halves. Ranks gather, never add.

        The gradient carries the global denominator: a trainer sums parameter gradients over DP, it does not
        average them. `grad_scale` multiplies the gradient in float32 before it is written in the logits' dtype.

        `validate="full"` checks shapes and values and waits for the device; "off" checks shapes only. `preflight`
        compares all ranks on every call, on the first call of these groups with this contract ("once"), or never;
        ranks must agree in that, and in `validate`.

        With `fixed` the call is a part of that batch (see `FixedBatch.apply`): no rank is asked over DP.

        `problems` are what a caller has found already: they are raised with this call's own, on every rank.

        Raises ContractError, InputError or PreflightError, the same on every rank.
        """
        scale, options = _option_values(grad_scale, preflight)
        place = sharding or _single_places.get((contract,), _single_place)
        tp, dp = process_group(tp_group), process_group(dp_group)
        sizes = (None if tp is None else tp.size(), None if dp is None else dp.size())
        if fixed is not None:
            sizes, preflight = (sizes[0], place.dp_degree), "off"
        call = LossCall(
            policy_local_logits, action_ids, old_logps, rewards, contract, place, completion_mask,
            ref_local_logits, sizes,
        )  # fmt: skip
        provenance = self._provenance(contract, place)
        agreed, key = self._agreed.get((tp, dp), _none_agreed), provenance["numeric_fingerprint"]
        wanted = preflight != "off" and not (preflight == "once" and key in agreed)
        checks = Checks(validate, wanted, self._compared, (*problems, *options))
        program = self._program(call, checks, scale, observe)
        if fixed is not None:
            program = fixed.answering(program, place)
        with torch.no_grad():
            inputs, state = RealRanks(tp, dp, self.on_collective).run(program)
        if wanted:
            _remember(agreed, key)
        loss = attach_gradient(policy_local_logits, inputs, state, self.stages)
        return self._result(state, loss, provenance)

    def _program(
        self, call: LossCall, checks: Checks, grad_scale: float, observe: Observer | None
    ) -> Program[tuple[LossInputs, LossState]]:
        return checked_program(call, self.stages, checks, grad_scale=grad_scale, observe=observe)

    def _result(self, state: LossState, loss: Tensor, provenance: dict[str, Any]) -> GRPOLossResult:
        return GRPOLossResult.of(state, loss, provenance)

    @cached_property
    def identity(self) -> str:
        """Backend and launch configuration: all that fixes bits beside the contract."""
        return " ".join([self.backend, *(f"{name}={value}" for name, value in sorted(self.launch.items()))])

    @property
    def other_paths(self) -> dict[str, DistributedGRPOLossOp]:
        """Other ways through this op to the same bits, by the option of `apply` that takes them."""
        return {}

    @property
    def _compared(self) -> str:
        """What preflight compares of the op: its identity, and all that fixes its collectives."""
        return self.identity

    def _fingerprint(self, contract: GRPOLossContract) -> str:
        return contract.numeric_fingerprint(self.launch)

    def _provenance(self, contract: GRPOLossContract, sharding: ShardingSpec) -> dict[str, Any]:
        return {
            **self.dispatch,
            "op": "grpo_loss",
            "backend": self.identity,
            "numeric_fingerprint": self._fingerprints.get((contract,), self._fingerprint),
            "layout": {"tp": sharding.tp_degree, "dp": sharding.dp_degree},
            "cp_rank": sharding.cp_rank,
        }


def _option_values(grad_scale: Any, preflight: Any) -> tuple[float, list[Problem]]:
    """`grad_scale` as a float without a negative zero; and what is no option, for every rank to hear of."""
    found = []
    try:
        scale = float(grad_scale) + 0.0
    except (TypeError, ValueError, OverflowError, RuntimeError):
        scale = 1.0
        found.append(Problem("input.grad_scale", "grad_scale", "a finite number", repr(grad_scale)))
    if preflight not in get_args(Preflight):
        expected = " or ".join(get_args(Preflight))
        found.append(Problem("input.preflight", "preflight", expected, repr(preflight)))
    return scale, found


def _none_agreed(*_: Any) -> OrderedDict[str, None]:
    return OrderedDict()


def _remember(agreed: OrderedDict[str, None], key: str) -> None:
    agreed[key] = None
    if len(agreed) > KEPT:
        agreed.popitem(last=False)


_single_places: IdentityCache[ShardingSpec] = IdentityCache()


def _single_place(contract: GRPOLossContract) -> ShardingSpec:
    return ShardingSpec.even(1, 1, contract=contract)


def attach_gradient(logits: Tensor, inputs: LossInputs, state: LossState, stages: Stages) -> Tensor:
    """The loss as a function of `logits`, with the analytic backward."""
    loss: Tensor = _AnalyticGradient.apply(logits, inputs, state, stages)
    return loss


class _AnalyticGradient(torch.autograd.Function):
    """Carries the loss through autograd; the backward is local and needs no collective."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, inputs: LossInputs, state: LossState, stages: Stages) -> Tensor:
        in_place = state.written is not None and state.written.inplace
        ctx.save_for_backward(*(() if in_place else (logits,)))
        ctx.inputs, ctx.state, ctx.stages, ctx.shape = inputs, state, stages, logits.shape
        return state.own_loss()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.saved_tensors  # noqa: B018  # raises when the logits were changed in place since the forward
        gradient = gradient_of(ctx.inputs, ctx.state, ctx.stages, upstream)
        return gradient.view(ctx.shape), None, None, None
