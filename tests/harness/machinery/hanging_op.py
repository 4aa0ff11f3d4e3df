"""Ops of a stranger's that hang in a collective of their own; none of it is counted by the harness."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist
from torch import Tensor


def stuck_here() -> None:
    """The frame that must show up in the blame."""
    time.sleep(600)


def one_rank_sleeps(logits: Tensor, *_tensors: Tensor, tp_group: Any = None, **_context: Any) -> dict[str, Tensor]:
    """Rank 1 sleeps where rank 0 waits in an all_reduce."""
    total = logits.float().square().mean()
    if tp_group is None:
        return {"loss": total}
    if dist.get_rank() == 1:
        stuck_here()
    held = total.detach().clone()
    dist.all_reduce(held, group=tp_group)
    return {"loss": total + 0 * held}
