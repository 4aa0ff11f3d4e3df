"""A loss op as a reducer of chosen exponentials: those of one row of the vocabulary.

Shapes: R rows of probes, V columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.revealing.probe_shape import NOTHING, ProbeShape, Run
from harness.revealing.sum_trees import NotRevealedError
from loss_ops.quantities import GRADIENT


def vocabulary_by_kl(run: Run, shape: ProbeShape) -> Callable[[Tensor], Tensor]:
    """As `vocabulary_by_gradient`, one probe a sequence, read from the logarithm of the sum alone.

    Against a certain reference k1 of the taken token is minus that logarithm: no exponential comes after it. For
    kernels whose exponential does not tell 1 from the number below, and gradients that lose it in a narrow type.
    """

    def reduce(terms_RV: Tensor) -> Tensor:
        found = []
        for rows in terms_RV.split(shape.sequences):
            policy, ref = shape.certain(shape.tokens), shape.certain(shape.tokens)
            ids = torch.zeros(policy.shape[:2], dtype=torch.int64)
            ids[: len(rows), 0] = rows.argmax(1)
            policy[: len(rows), 0] = _logs(rows)
            ref[: len(rows), 0] = torch.where(ids[: len(rows), :1] == torch.arange(shape.columns), 0.0, NOTHING)
            got = run(shape.batch(shape.tokens, torch.zeros(ids.shape), policy, ref, ids))
            if "per_sequence_kl" not in got:
                raise NotRevealedError("the op returns no per_sequence_kl")
            found.append(1.0 + (got["per_sequence_kl"] != 0).float()[: len(rows)])
        return torch.cat(found)

    return reduce


def _logs(terms: Tensor) -> Tensor:
    return torch.where(terms > 0, terms.clamp_min(1e-30).log(), NOTHING)


def vocabulary_by_gradient(run: Run, shape: ProbeShape) -> Callable[[Tensor], Tensor]:
    """[R, V] exponentials, the largest 1, to 1 where their sum is 1 and to more where it is more.

    The term of 1 is the taken token; its gradient is a coefficient times 1 - 1 / sum, 0 only for a sum of 1.
    """
    tokens = shape.tokens

    def reduce(terms_RV: Tensor) -> Tensor:
        found = []
        step = shape.sequences * tokens
        for rows in terms_RV.split(step):
            padded = torch.cat((rows, rows.new_zeros(step - len(rows), shape.columns)))
            padded[len(rows) :, 0] = 1.0
            ids = padded.argmax(1)
            cube = _logs(padded).view(shape.sequences, tokens, shape.columns)
            old = torch.zeros(shape.sequences, tokens)
            got = run(shape.batch(tokens, old, cube, cube.clone(), ids.view(shape.sequences, tokens)))
            taken = got[GRADIENT].reshape(step, shape.columns).gather(1, ids[:, None])[:, 0]
            found.append(1.0 + (taken != 0).float()[: len(rows)])
        return torch.cat(found)

    return reduce
