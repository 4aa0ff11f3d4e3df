"""The scalars of the loss, from the batch's sequence totals."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from loss_ops.gather import Program
from loss_ops.inputs import LossInputs
from loss_ops.normalizer import normalization
from loss_ops.sequence_totals import SequenceTotals


@dataclass(frozen=True)
class Scalars:
    """Float32: normalized policy loss and KL (not multiplied by beta), and each sequence's token weight."""

    policy_loss: Tensor
    kl: Tensor
    weight_B: Tensor


def scalars(totals_B: SequenceTotals, local_S: SequenceTotals, inputs: LossInputs) -> Program[Scalars]:
    """Normalize the batch's totals; needs no further gather, and reads nothing of the local totals."""
    norm = normalization(totals_B.active_tokens, inputs.contract)
    return Scalars(norm.scalar(totals_B.policy), norm.scalar(totals_B.kl), norm.weight_B)
    yield  # a stage of the program, even without a request
