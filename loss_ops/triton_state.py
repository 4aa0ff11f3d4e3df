"""What the Triton program leaves behind: buffers, read as the fields of `LossState` when somebody asks."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from grpo_contract import InputError, Problem
from loss_ops.inputs import LossInputs
from loss_ops.logprob import Logprobs
from loss_ops.loss_program import LossState
from loss_ops.scalars import Scalars
from loss_ops.sequence_totals import SequenceTotals
from loss_ops.triton_gradient import GradientInputs, launch_gradient
from loss_ops.triton_plan import Plan
from loss_ops.triton_rescale import rescale
from loss_ops.triton_workspace import Workspace


class TritonState(LossState):
    """A `LossState` over a workspace; its tensors are views that are made on first use."""

    def __init__(self, space: Workspace, totals_B7: Tensor | None, written: WrittenGradient) -> None:
        self.__dict__.update(space=space, totals_B7=totals_B7, written=written)

    space: Workspace
    totals_B7: Tensor | None

    @property
    def loss(self) -> Tensor:
        """A new view each time: autograd may own it."""
        return self.space.scalar(0)

    @cached_property
    def scalars(self) -> Scalars:
        """Normalized policy loss, KL and weights."""
        return Scalars(self.space.scalar(1), self.space.scalar(2), self.space.by_sequence(2))

    @cached_property
    def totals_B(self) -> SequenceTotals:
        """The batch's sequence totals."""
        totals = self.totals_B7
        if totals is None:
            totals = self.space.tensor("totals", -1, 7)
        _, _, *counts = totals.unbind(dim=1)
        return SequenceTotals(self.space.by_sequence(0), self.space.by_sequence(1), *counts)

    @cached_property
    def advantages_B(self) -> Tensor:
        """[B] advantages."""
        return self.space.tensor("advantages", -1)

    @cached_property
    def softmax_N(self) -> Logprobs:
        """Log-probabilities, maxima / temperature and logs of the sums."""
        logp, largest, log_sum, _ = self.space.tensor("softmax", 4, -1).unbind()
        return Logprobs(logp, largest, log_sum)

    @cached_property
    def coefficient_N(self) -> Tensor:
        """[N] d loss / d logit scale."""
        return self.space.tensor("coefficient", -1)

    @cached_property
    def clip_counts_4(self) -> Tensor:
        """low, high, either, active."""
        return self.space.tensor("clips", -1)

    def own_loss(self) -> Tensor:
        """The loss in memory of its own."""
        return self.loss


class WrittenGradient:
    """Makes the [N, V] gradient when autograd asks for it, or hands over the one that the forward has written.

    Written beside the logits: the kernel runs again with the incoming gradient and leaves at once when that is
    1, so every factor is exact and the host waits for nothing. In place of the logits there is nothing to compute
    from: with `wait` the incoming gradient is read on the host, and any but 1 is refused; without, the device
    scales by 0 or a power of two, which is exact, and answers any other factor with NaN.
    """

    def __init__(
        self,
        inputs: LossInputs,
        plan: Plan,
        space: Workspace,
        target_NV: Tensor | None,
        *,
        inplace: bool,
        wait: bool = True,
    ) -> None:
        self.inputs, self.plan, self.space = inputs, plan, space
        self.inplace, self.wait = inplace, wait
        self._target = target_NV

    def write(self) -> None:
        """The split path's gradient, for layouts without the one-kernel path."""
        assert self._target is not None
        self._launch(self._target, None, unless_one=False)

    def times(self, upstream: Tensor | None) -> Tensor:
        """The gradient times `upstream`, handed over: a second call computes it anew, or refuses in place."""
        target, self._target = self._target, None
        if self.inplace:
            return _handed_over(target, upstream, wait=self.wait)
        if target is None:
            out = torch.empty_like(self.inputs.policy_logits_NV, memory_format=torch.contiguous_format)
            return self._launch(out, upstream, unless_one=False)
        return target if upstream is None else self._launch(target, upstream, unless_one=True)

    def _launch(self, out: Tensor, upstream: Tensor | None, *, unless_one: bool) -> Tensor:
        slots, plan, space = self.space.layout.slots, self.plan, self.space
        made_of = GradientInputs(
            self.inputs.action_ids_ST,
            space.part("coefficient"),
            space.row("softmax", 1, slots),
            space.row("softmax", 2, slots),
            plan.shard,
            plan.inverse_temperature,
        )
        return launch_gradient(
            self.inputs.policy_logits_NV, out, made_of, upstream=upstream, unless_one=unless_one
        )


def _handed_over(target: Tensor | None, upstream: Tensor | None, *, wait: bool) -> Tensor:
    if target is None:
        raise _refused("backward", "one backward (the logits became the gradient)", "a second one")
    if upstream is not None and not wait:
        return rescale(target, upstream)
    if upstream is not None and float(upstream) != 1.0:
        expected = "1 (an in-place gradient cannot be scaled exactly; pass grad_scale to the forward)"
        raise _refused("incoming gradient", expected, float(upstream))
    return target


def _refused(where: str, expected: str, got: Any) -> InputError:
    return InputError(Problem("input.inplace", where, expected, str(got)))
