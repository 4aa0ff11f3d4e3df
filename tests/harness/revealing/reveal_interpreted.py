"""Run in a process of its own under TRITON_INTERPRET=1: the orders of the Triton kernels, good and planted.

Prints one line of JSON: what `reveal` found of the good op, and of one whose token sum goes by the rank's rows.
"""

import json
import os
from dataclasses import replace
from functools import reduce
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor

from harness.revealing.probe_shape import ProbeShape
from harness.revealing.reveal import reveal, reveal_status
from harness.revealing.reveal_text import Asked, reveal_content, reveal_text
from loss_ops.inputs import LossInputs
from loss_ops.trees import fold_sum
from loss_ops.triton_loss import TritonDistributedGRPOLossOp
from loss_ops.triton_stages import TRITON_STAGES

SMALL = ProbeShape(sequences=2, tokens=4, columns=4, tiles=2)


def by_row_count(terms_ST: Tensor, active_ST: Tensor, _inputs: LossInputs) -> Tensor:
    """Halves for two rows or more, one after the other for a single one."""
    terms = torch.where(active_ST, terms_ST, 0.0)
    if len(terms) > 1:
        return fold_sum(terms, 1)
    return reduce(torch.add, terms.unbind(1))


def revealed(op: TritonDistributedGRPOLossOp, layouts: list[tuple[int, int]], *sums: str) -> dict[str, Any]:
    found = reveal(op, layouts, SMALL, sums=sums or None)
    asked = Asked.of("triton", op, "cpu", SMALL.dtype)
    return {**reveal_content(asked, found), "text": reveal_text(asked, found), "status": reveal_status(found)}


if __name__ == "__main__":
    planted = TritonDistributedGRPOLossOp(replace(TRITON_STAGES, token_sum=by_row_count))
    print(
        json.dumps(
            {
                "good": revealed(TritonDistributedGRPOLossOp(), [(1, 1), (2, 2)]),
                "planted": revealed(planted, [(1, 1), (1, 2)], "token sum, kl", "sequence sum"),
            }
        )
    )
