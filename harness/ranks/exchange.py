"""Text between ranks, as bytes over the control group (gloo); nothing is pickled."""

from __future__ import annotations

import torch
import torch.distributed as dist


def gather_texts(text: str) -> list[str]:
    """Every rank's text, in rank order, on every rank."""
    # The newline keeps an empty text from being an empty tensor, which has no buffer to send.
    data = torch.frombuffer(bytearray(text.encode() + b"\n"), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([len(data)]))
    longest = max(int(length) for length in lengths)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(data)] = data
    received = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(received, padded)
    pairs = zip(received, lengths, strict=True)
    return [each[: int(length) - 1].numpy().tobytes().decode() for each, length in pairs]
