"""What an op's own numbers can show: it is asked again on inputs that are moved by about a rounding.

Power is measured with our op, in float32. A foreign op may round what it returns, or return what it remembers;
then another order could not show, however much it moved ours. Moved are the taken tokens' logits, the old
log-probabilities and the rewards, of each a random half, by a few representable steps. A step of half precision is
large beside a rounding of float32, so of such logits one slot a sequence moves, by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from harness.comparing.ulp import raw_bits
from loss_ops.batch import GlobalBatch

STEPS = (8, 32, 128, 128)
"""Of float32, one trial each: from about what another order makes of a long sum, to far more."""
Quantities = Mapping[str, Tensor]


def unmoved(run: Callable[[GlobalBatch], Quantities], batch: GlobalBatch, baseline: Quantities) -> frozenset[str]:
    """The floating quantities of `baseline` whose bits no trial changed: they cannot show another order.

    `run` gives the op's quantities on one rank. Raises what it raises.
    """
    still = {name for name, value in baseline.items() if value.is_floating_point()}
    for trial in range(len(STEPS)):
        if not still:
            break
        other = run(stepped(batch, trial))
        still = {name for name in still if name in other and not _differ(baseline[name], other[name])}
    return frozenset(still)


def disturb(run: Callable[[GlobalBatch], Quantities], batch: GlobalBatch) -> None:
    """Call the op on other inputs: what it remembers of its latest call must not pass for what it computes."""
    with suppress(Exception):  # an op may check its inputs
        run(stepped(batch, 0))


def stepped(batch: GlobalBatch, trial: int) -> GlobalBatch:
    """The batch with some inputs moved away from zero by a few representable steps, drawn by `trial` alone."""
    draw, steps = torch.Generator().manual_seed(trial), STEPS[trial]
    return replace(
        batch,
        policy_logits=_taken_stepped(batch, draw, steps),
        old_logps=_some_stepped(batch.old_logps, draw, steps),
        rewards=_some_stepped(batch.rewards, draw, steps),
    )


def _differ(one: Tensor, other: Tensor) -> bool:
    alike = one.shape == other.shape and one.dtype == other.dtype
    return not (alike and torch.equal(raw_bits(one), raw_bits(other)))


def _taken_stepped(batch: GlobalBatch, draw: torch.Generator, steps: int) -> Tensor:
    logits = batch.policy_logits.detach().clone()
    chosen = batch.completion_mask != 0
    if logits.dtype is not torch.float32:
        chosen = chosen & (chosen.cumsum(dim=1) == 1)
    chosen = chosen & _half(chosen, draw)
    sequences, slots = chosen.nonzero(as_tuple=True)
    columns = batch.action_ids[sequences, slots]
    logits[sequences, slots, columns] = _step(logits[sequences, slots, columns], steps)
    return logits


def _some_stepped(values: Tensor, draw: torch.Generator, steps: int) -> Tensor:
    return torch.where(_half(values, draw), _step(values, steps), values)


def _half(like: Tensor, draw: torch.Generator) -> Tensor:
    return (torch.rand(like.shape, generator=draw) < 0.5).to(like.device)


def _step(values: Tensor, steps: int) -> Tensor:
    """A representable number a few away, further from zero; what is not finite, or zero, stays."""
    bits = raw_bits(values)
    moves = torch.isfinite(values) & (values != 0)
    count = steps if values.dtype is torch.float32 else 1
    return (bits + count * moves.to(bits.dtype)).view(values.dtype)
