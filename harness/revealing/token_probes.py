"""A loss op as a reducer of chosen terms: its inputs are made so that the terms of one of its sums are these.

Shapes: R rows of probes, B sequences, T slots, V columns. Every log-probability in play is exact: with one
logit far above all others it is 0, and with logit -x against one of 0 it is -x for x of 64 or more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.revealing.probe_shape import NOTHING, ProbeShape, Run
from harness.revealing.sum_trees import NotRevealedError
from loss_ops.batch import GlobalBatch

VANISHES = 200.0
"""An old log-probability that makes the ratio of a certain token exactly 0."""
UNIT = 64.0


def token_policy_rows(run: Run, shape: ProbeShape) -> Callable[[Tensor], Tensor]:
    """[R, T] positive terms to [R] sums, through the ratio of each token and per_sequence_policy.

    An op that shows no per-sequence vector is asked one row at a time, through its loss.
    """

    def batch_of(terms_BT: Tensor) -> GlobalBatch:
        old = torch.where(terms_BT > 0, -terms_BT.clamp_min(1e-30).double().log(), VANISHES).float()
        certain = shape.certain(shape.tokens)
        ids = torch.zeros(terms_BT.shape, dtype=torch.int64)
        return shape.batch(shape.tokens, old, certain, certain.clone(), ids)

    def reduce(terms_RT: Tensor) -> Tensor:
        found = []
        step = shape.sequences
        for rows in terms_RT.split(step):
            padded = torch.cat((rows, rows.new_zeros(step - len(rows), shape.tokens)))
            got = run(batch_of(padded))
            if "per_sequence_policy" not in got:
                return torch.stack([_through_loss(run, batch_of, row, shape) for row in terms_RT])
            found.append(got["per_sequence_policy"].abs()[: len(rows)])
        return torch.cat(found)

    return reduce


def _through_loss(run: Run, batch_of: Callable[[Tensor], GlobalBatch], row_T: Tensor, shape: ProbeShape) -> Tensor:
    alone = torch.zeros(shape.sequences, shape.tokens)
    alone[0] = row_T
    got = run(batch_of(alone))
    value = got.get("policy_loss", got.get("loss"))
    if value is None:
        raise NotRevealedError("the op returns neither per_sequence_policy nor a loss")
    return value.detach().abs() * (shape.sequences * shape.tokens)


def token_kl_rows(run: Run, shape: ProbeShape) -> Callable[[Tensor], Tensor]:
    """[R, T] terms of both signs to [R] sums, through k1 and per_sequence_kl."""

    def reduce(terms_RT: Tensor) -> Tensor:
        found = []
        for rows in terms_RT.split(shape.sequences):
            padded = torch.cat((rows, rows.new_zeros(shape.sequences - len(rows), shape.tokens)))
            got = run(_kl_batch(padded, shape))
            if "per_sequence_kl" not in got:
                raise NotRevealedError("the op returns no per_sequence_kl")
            found.append(got["per_sequence_kl"][: len(rows)])
        return torch.cat(found)

    return reduce


def sequence_kl_rows(run: Run, shape: ProbeShape) -> Callable[[Tensor], Tensor]:
    """[R, B] terms of both signs to [R] sums over sequences of one slot each, through k1 and kl."""

    def one(row_B: Tensor) -> Tensor:
        got = run(_kl_batch(row_B[:, None], shape))
        if "kl" not in got:
            raise NotRevealedError("the op returns no kl")
        return got["kl"] * shape.sequences

    return lambda terms_RB: torch.stack([one(row) for row in terms_RB])


def _kl_batch(terms_BT: Tensor, shape: ProbeShape) -> GlobalBatch:
    """k1 = logp - ref_logp: the reference, or the policy, gives the taken token a log-probability of -|term|."""
    if bool(terms_BT.to(getattr(torch, shape.dtype)).isinf().any()):
        raise NotRevealedError(f"{shape.dtype} logits cannot hold a term that absorbs all others")
    tokens = terms_BT.shape[1]
    policy, ref = shape.certain(tokens), shape.certain(tokens)
    for logits, where in ((ref, terms_BT > 0), (policy, terms_BT < 0)):
        logits[..., 0] = torch.where(where, -terms_BT.abs(), 0.0)
        logits[..., 1] = torch.where(where, 0.0, NOTHING)
    old = torch.where(terms_BT < 0, terms_BT, 0.0)
    return shape.batch(tokens, old, policy, ref, torch.zeros(terms_BT.shape, dtype=torch.int64))
