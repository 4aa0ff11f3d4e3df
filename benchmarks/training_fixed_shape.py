"""What a fixed shape costs: forward and backward of the same sequences, block by block and all at once.

A decoder of torch's own layers stands in for a language model, so that nothing has to be installed.

    python benchmarks/training_fixed_shape.py [--sequences 16] [--length 64] [--blocks 1 2 4] [--device cpu|cuda]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor, nn


class Decoder(nn.Module):
    """Causal transformer layers between an embedding and a head."""

    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        logits: Tensor = self.head(self.layers(self.embedding(ids), mask=mask, is_causal=True))
        return logits


def main() -> None:
    """Print seconds and tokens a second by block."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 2, 4, 16])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = Decoder(options.width, options.layers, options.vocabulary).to(options.device)
    ids = torch.randint(0, options.vocabulary, (options.sequences, options.length), device=options.device)
    print(f"{sum(each.numel() for each in model.parameters()):,} parameters, one thread")
    whole = measured(model, ids, options.sequences, options)
    for block in options.blocks:
        seconds = measured(model, ids, block, options)
        print(
            f"block {block:3d}  {seconds:7.3f} s  {ids.numel() / seconds:9,.0f} tokens/s  {seconds / whole:5.2f}"
        )


def measured(model: nn.Module, ids: Tensor, block: int, options: argparse.Namespace) -> float:
    """Median seconds of forward and backward over all blocks, after one run to warm up."""
    seconds = []
    for _ in range(options.repeats + 1):
        started = time.perf_counter()
        for part in ids.split(block):
            model(part).logsumexp(-1).sum().backward()
            model.zero_grad(set_to_none=True)
        if options.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
