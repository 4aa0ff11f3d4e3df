"""A GRPO loss that depends on timing: tokens are added by threads, in the order in which they finish.

Nothing is wrong with any term, and two runs often agree; which thread is first is up to the machine. On CUDA the
order is that in which threads get to the stream, as with atomic additions of a kernel's blocks. Run it with other
timing for each repeat, which is made to show just this:

    grpo-verify --op examples.arrival_order_sum:ArrivalOrderSum --tp 1 --dp 2 --batch seed --stress --repeat 3
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from loss_ops.distributed_loss import DistributedGRPOLossOp
from loss_ops.stages import NATIVE_STAGES

NUM_THREADS = 8


class ArrivalOrderSum:
    """The native op, with a token sum of partial sums added as they arrive."""

    def __init__(self) -> None:
        stages = replace(NATIVE_STAGES, token_sum=_sum_as_they_come)
        self._op = DistributedGRPOLossOp(stages, backend="arrival_order_sum")

    def apply(self, *tensors: Tensor, **context: Any) -> Any:
        """This rank's call, with the arguments of `DistributedGRPOLossOp.apply`."""
        return self._op.apply(*tensors, **context)


def _sum_as_they_come(terms_ST: Tensor, active_ST: Tensor, _inputs: Any) -> Tensor:
    """[S] sums over T slots, in blocks of which each has a thread."""
    terms_ST = torch.where(active_ST, terms_ST, 0.0)
    total_S = torch.zeros_like(terms_ST[:, 0])
    one_at_a_time = threading.Lock()
    stream = torch.cuda.current_stream(terms_ST.device) if terms_ST.is_cuda else None

    def add(block: Tensor) -> None:
        with torch.no_grad(), nullcontext() if stream is None else torch.cuda.stream(stream):
            part_S = block.sum(1)
            with one_at_a_time:
                total_S.add_(part_S)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for done in [pool.submit(add, block) for block in terms_ST.tensor_split(NUM_THREADS, dim=1)]:
            done.result()
    return total_S
