"""A sum whose order is that in which threads finish: for the planted fault that --stress must catch."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import torch
from torch import Tensor

from loss_ops.trees import fold_sum

MOST_THREADS = 32


def sum_in_arrival_order(terms_ST: Tensor) -> Tensor:
    """[S] sums over the slots: each thread folds a block of them, and the blocks are added as they come in.

    On CUDA all threads use the stream of the caller, so that only the order of the additions is theirs.
    """
    stream = torch.cuda.current_stream(terms_ST.device) if terms_ST.is_cuda else None
    arrived: list[Tensor] = []

    def deliver(block: Tensor) -> None:
        with torch.no_grad(), nullcontext() if stream is None else torch.cuda.stream(stream):
            arrived.append(fold_sum(block, 1))

    blocks = terms_ST.tensor_split(min(MOST_THREADS, terms_ST.shape[1]), dim=1)
    threads = [threading.Thread(target=deliver, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = arrived[0]
    for part in arrived[1:]:
        total = total + part
    return total
