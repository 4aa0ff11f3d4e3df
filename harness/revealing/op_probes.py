"""A loss op as a reducer of chosen terms: its inputs are made so that the terms of one of its sums are these.

Shapes: R rows of probes, B sequences, T slots, V columns. Every log-probability in play is exact: with one
logit far above all others it is 0, and with logit -x against one of 0 it is -x for x of 64 or more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract, InputError, Problem
from harness.revealing.sum_trees import NotRevealedError
from loss_ops.batch import GlobalBatch
from loss_ops.quantities import GRADIENT

Run = Callable[[GlobalBatch], dict[str, Tensor]]
NOTHING = -1e4
"""A logit whose exponential is exactly 0 beside one of 0, in float32."""
VANISHES = 200.0
"""An old log-probability that makes the ratio of a certain token exactly 0."""
UNIT = 64.0
MOST_PROBED = 4096
LARGEST_BATCH = 1 << 28
"""Elements of the logits of one probe: 1 GiB in float32."""


@dataclass(frozen=True)
class ProbeShape:
    """Sequences, slots, columns and tiles of the batches that carry probes, and the dtype of their logits."""

    sequences: int = 8
    tokens: int = 16
    columns: int = 16
    tiles: int = 4
    dtype: str = "float32"

    def __post_init__(self) -> None:
        found = [
            Problem("request.probe", f"--{name}", f"at most {MOST_PROBED}", str(getattr(self, name)))
            for name in ("sequences", "tokens", "columns", "tiles")
            if getattr(self, name) > MOST_PROBED
        ]
        size = self.sequences * self.tokens * self.columns
        if size > LARGEST_BATCH and not found:
            expected = f"a product of at most {LARGEST_BATCH}"
            found.append(Problem("request.probe", "--sequences x --tokens x --columns", expected, str(size)))
        found += [
            Problem("request.probe", f"--{name}", expected, str(getattr(self, name)))
            for name, least, even, expected in (
                ("sequences", 2, True, "an even number from 2 on (half of the advantages are 1, half -1)"),
                ("tokens", 1, False, "at least 1"),
                ("columns", 2, False, "at least 2"),
            )
            if getattr(self, name) < least or (even and getattr(self, name) % 2)
        ]
        if found:
            raise InputError(found)

    def contract(self, tokens: int) -> GRPOLossContract:
        """Advantages of +1 and -1, no clip in the way, KL by its k1 estimate, beta 0."""
        return GRPOLossContract.for_batch(
            num_sequences=self.sequences,
            padded_seq_len=tokens,
            vocab_size=self.columns,
            dtype=self.dtype,
            num_vocab_tiles=self.tiles,
            samples_per_prompt=self.sequences,
            beta=0.0,
            kl_estimator="k1",
            clip_eps_low=1.0,
            clip_eps_high=1e4,
            advantage="mean_only",
        )

    def batch(self, tokens: int, old_logps: Tensor, logits: Tensor, ref: Tensor, ids: Tensor) -> GlobalBatch:
        """The batch of these tensors; rewards alternate between 1 and -1."""
        rewards = torch.tensor([1.0, -1.0]).repeat(self.sequences)[: self.sequences]
        mask = torch.ones(self.sequences, tokens, dtype=torch.bool)
        dtype: torch.dtype = getattr(torch, self.dtype)
        policy, reference = logits.to(dtype), ref.to(dtype)
        return GlobalBatch(policy, reference, ids, old_logps, rewards, mask, self.contract(tokens))

    def certain(self, tokens: int) -> Tensor:
        """[B, T, V] logits under which column 0 is certain."""
        logits = torch.full((self.sequences, tokens, self.columns), NOTHING)
        logits[..., 0] = 0.0
        return logits


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
