"""The good op with one eager line in it: the tokens of a sequence are summed with `sum(dim=1)`.

On a GPU the reduction kernel picks its order by the number of rows, so at a padded length of 1024 and more the
split over DP ranks changes bits; on the CPU it does not, and the run stays green. See for yourself:

    grpo-verify --op examples.eager_row_sum:EagerRowSum --device cuda --dp 4 --batch long
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.inputs import LossInputs
from loss_ops.stages import NATIVE_STAGES


def eager_sum(terms_ST: Tensor, active_ST: Tensor, _inputs: LossInputs) -> Tensor:
    """[S] sums over slots, in whatever order the device's kernel takes for this number of rows."""
    return torch.where(active_ST, terms_ST, 0.0).sum(dim=1)


class EagerRowSum(DistributedGRPOLossOp):
    """The sharded op with `eager_sum` as its token sum."""

    def __init__(self) -> None:
        super().__init__(replace(NATIVE_STAGES, token_sum=eager_sum), backend="eager row sum")
