"""The GRPO loss as one program: local stages between three gathers, the same for real and virtual ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from loss_ops import logprob, sequence_totals
from loss_ops.gather import Gather, Program
from loss_ops.inputs import LossInputs, Slots
from loss_ops.logprob import Logprobs
from loss_ops.scalars import Scalars
from loss_ops.sequence_totals import SequenceTotals
from loss_ops.stages import Stages
from loss_ops.token_terms import TokenTerms

Observer = Callable[[str, Tensor], None]


class Written(Protocol):
    """A gradient that a program makes itself; `inplace` says that the forward put it in place of the logits."""

    inplace: bool

    def times(self, upstream: Tensor | None) -> Tensor:
        """[N, V] the gradient times a scalar."""


@dataclass(frozen=True)
class LossState:
    """What the forward leaves behind: the batch's numbers, and what this rank's backward needs.

    `clip_counts_4` (low, high, either, active; int64) and `written` are there where a program made them.
    """

    scalars: Scalars
    loss: Tensor
    totals_B: SequenceTotals
    advantages_B: Tensor
    softmax_N: Logprobs
    coefficient_N: Tensor
    clip_counts_4: Tensor | None = None
    written: Written | None = None

    def own_loss(self) -> Tensor:
        """The loss in memory of its own, for autograd to return."""
        return self.loss.clone()


def loss_program(
    inputs: LossInputs, stages: Stages, *, grad_scale: float = 1.0, observe: Observer | None = None
) -> Program[LossState]:
    """Forward of one rank, by the stages' own program where they have one (see `staged_program`)."""
    run = stages.program or staged_program
    return run(inputs, stages, grad_scale=grad_scale, observe=observe)


def staged_program(
    inputs: LossInputs, stages: Stages, *, grad_scale: float = 1.0, observe: Observer | None = None
) -> Program[LossState]:
    """Forward of one rank, stage by stage.

    Gathers rewards over DP, tile statistics over TP, sequence totals over DP.
    `observe(name, tensor)` sees the outputs of the stages, [S, T]: logp, ratio, kl, policy.
    """
    advantages_B = yield from _advantages(inputs, stages)
    models = [inputs.policy_logits_NV, *([] if inputs.ref_logits_NV is None else [inputs.ref_logits_NV])]
    softmaxes = yield from selected_logprobs(models, inputs.slots, stages)
    logp_ST, *ref_logp_ST = (each.logp_N.view(inputs.active_ST.shape) for each in softmaxes)
    reference_ST = ref_logp_ST[0] if ref_logp_ST else None
    terms = stages.token_terms(
        logp_ST,
        reference_ST,
        inputs.old_logps_ST,
        stages.own_advantages(advantages_B, inputs),
        inputs.active_ST,
        inputs.contract.objective,
    )
    if observe is not None:
        for name, tensor in (
            ("logp", logp_ST),
            ("ratio", terms.ratio),
            ("kl", terms.kl),
            ("policy", terms.policy),
        ):
            observe(name, tensor)
    local_S = _local_totals(terms, logp_ST, reference_ST, inputs, stages)
    gathered = yield Gather("dp", sequence_totals.pack(local_S), inputs.sequence_sizes, "sequence totals")
    totals_B = gathered.once("totals", stages.assemble)
    scalars = yield from stages.scalars(totals_B, local_S, inputs)
    coefficient_N = _coefficient(terms, scalars, inputs, grad_scale).flatten()
    loss = total_loss(scalars, inputs.contract.objective.beta)
    return LossState(scalars, loss, totals_B, advantages_B, softmaxes[0], coefficient_N)


def _advantages(inputs: LossInputs, stages: Stages) -> Program[Tensor]:
    gathered = yield Gather("dp", inputs.rewards_S.float(), inputs.sequence_sizes, "rewards")
    return gathered.once("advantages", lambda parts: stages.advantages(torch.cat(parts), inputs))


def selected_logprobs(models: list[Tensor], slots: Slots, stages: Stages) -> Program[list[Logprobs]]:
    """Log-probabilities of the taken tokens under each set of [N, V] logits; one gather over TP."""
    stats = [
        stages.tile_stats(logits, slots.action_ids_N, slots.active_N, slots.shard, slots.temperature)
        for logits in models
    ]
    packed = torch.cat([logprob.pack(each) for each in stats])
    gathered = yield Gather("tp", packed, logprob.packed_sizes(slots.shard, len(models)), "tile statistics")
    merged = []
    for model in range(len(models)):
        tiles = gathered.once(f"tiles {model}", partial(logprob.unpack, shard=slots.shard, model=model))
        merged.append((yield from stages.merge(*tiles, slots.action_ids_N, slots.shard)))
    return merged


def _local_totals(
    terms: TokenTerms, logp_ST: Tensor, ref_logp_ST: Tensor | None, inputs: LossInputs, stages: Stages
) -> SequenceTotals:
    def sum_tokens(terms_ST: Tensor, active_ST: Tensor) -> Tensor:
        return stages.token_sum(terms_ST, active_ST, inputs)

    return sequence_totals.sequence_totals(terms, logp_ST, ref_logp_ST, inputs.active_ST, sum_tokens)


def total_loss(scalars: Scalars, beta: float) -> Tensor:
    """policy_loss + beta * kl; the policy loss alone at beta 0, whatever the KL holds."""
    return scalars.policy_loss + beta * scalars.kl if beta else scalars.policy_loss


def _coefficient(terms: TokenTerms, scalars: Scalars, inputs: LossInputs, grad_scale: float) -> Tensor:
    """[S, T] d loss / d logit scale: (d policy + beta d kl) * token weight * grad_scale / temperature."""
    objective = inputs.contract.objective
    slope = terms.d_policy + objective.beta * terms.d_kl if objective.beta else terms.d_policy
    weight_S = scalars.weight_B[slice(*inputs.sharding.sequence_shard)]
    scaled = slope * weight_S[:, None] * (grad_scale / objective.temperature)
    return torch.where(inputs.active_ST, scaled, 0.0)


def gradient_of(inputs: LossInputs, state: LossState, stages: Stages, upstream: Tensor | None = None) -> Tensor:
    """[N, V] gradient of the loss in this rank's policy logits, times `upstream` (a scalar) in float32."""
    if state.written is not None:
        return state.written.times(upstream)
    coefficient = state.coefficient_N if upstream is None else state.coefficient_N * upstream.float()
    return stages.logits_gradient(
        inputs.policy_logits_NV, inputs.slots, coefficient, state.softmax_N, inputs.sharding
    )
