"""A gradient that the forward has written, and what an incoming gradient does to it."""

from __future__ import annotations

from torch import Tensor

from grpo_contract import InputError, Problem
from loss_ops.inputs import LossInputs
from loss_ops.logprob import Logprobs
from loss_ops.triton_gradient import launch_gradient


class WrittenGradient:
    """Holds the [N, V] gradient until autograd asks for it, times the incoming gradient.

    Beside the logits: the kernel of the split path runs again with the incoming gradient and leaves at once
    when that is 1, so every factor is exact and the host waits for nothing. In place of the logits there is
    nothing to compute from: the incoming gradient is read on the host, and any but 1 is refused.
    """

    def __init__(
        self, inputs: LossInputs, coefficient_N: Tensor, softmax: Logprobs, target_NV: Tensor, *, inplace: bool
    ) -> None:
        self.inputs, self.coefficient_N, self.softmax = inputs, coefficient_N, softmax
        self.inplace = inplace
        self._target: Tensor | None = target_NV

    def write(self) -> None:
        """The split path's gradient, for layouts without the one-kernel path."""
        assert self._target is not None
        self._launch(self._target, None, unless_one=False)

    def times(self, upstream: Tensor | None) -> Tensor:
        """The gradient times `upstream`, handed over: a second call computes it anew, or refuses in place."""
        target, self._target = self._target, None
        if self.inplace:
            return self._handed_over(target, upstream)
        if target is None:
            return self._launch(self.inputs.policy_logits_NV.new_empty(self._shape), upstream, unless_one=False)
        return target if upstream is None else self._launch(target, upstream, unless_one=True)

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self.inputs.policy_logits_NV.shape)

    def _launch(self, out: Tensor, upstream: Tensor | None, *, unless_one: bool) -> Tensor:
        return launch_gradient(
            self.inputs.policy_logits_NV, out, self.inputs.slots, self.coefficient_N, self.softmax,
            upstream=upstream, unless_one=unless_one,
        )  # fmt: skip

    def _handed_over(self, target: Tensor | None, upstream: Tensor | None) -> Tensor:
        if target is None:
            raise InputError(
                Problem(
                    "input.inplace", "backward", "one backward (the logits became the gradient)", "a second one"
                )
            )
        if upstream is not None and float(upstream) != 1.0:
            expected = "1 (an in-place gradient cannot be scaled exactly; pass grad_scale to the forward)"
            raise InputError(Problem("input.inplace", "incoming gradient", expected, str(float(upstream))))
        return target
