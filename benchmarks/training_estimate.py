"""What the fixed order costs at a size nobody here can run: an estimate by calculation, not a measurement.

Per pass and rank, P parameters in 4 bytes, D ranks, n blocks a rank, k nodes that a rank is left with (1 where
blocks are a power of two a rank):
    sent, fixed order     k * 4 P (D - 1) / D for the exchange, 4 P (D - 1) / D for the gather
    sent, all_reduce      2 * 4 P (D - 1) / D (a ring)
    added, fixed order    n - k sums of P on the rank, then its share of the D k - 1 sums of P
    added, all_reduce     n - 1 sums of P on the rank, then its share of the D - 1 sums of P
    held                  log2(n) + 1 gradients at the same time, against 2
A sum of P reads two tensors and writes one: 12 P bytes.

    python benchmarks/training_estimate.py [--parameters 7e9] [--ranks 64] [--blocks 1 2 8]
"""

from __future__ import annotations

import argparse
import math

BYTES = 4


def main() -> None:
    """Print one line for each number of blocks a rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=7e9)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--link", type=float, default=50e9, help="bytes a second that a rank sends")
    parser.add_argument("--memory", type=float, default=3e12, help="bytes a second that a rank reads and writes")
    options = parser.parse_args()
    print(f"{options.parameters:.3g} parameters, {options.ranks} ranks, link {options.link:.3g} B/s")
    print("blocks a rank  way          sent GB  link s  sums s  held GB")
    for blocks in options.blocks:
        for way in ("fixed order", "all_reduce"):
            sent, added, held = costs(way, options.parameters, options.ranks, blocks)
            row = (
                f"{sent / 1e9:7.1f}  {sent / options.link:6.2f}  {added / options.memory:6.3f}  {held / 1e9:7.1f}"
            )
            print(f"{blocks:13d}  {way:11}  {row}")


def costs(way: str, parameters: float, ranks: int, blocks: int) -> tuple[float, float, float]:
    """Bytes sent, bytes read and written by sums, bytes held at most, on one rank in one pass."""
    size, others = BYTES * parameters, (ranks - 1) / ranks
    nodes = bin(blocks).count("1") if way == "fixed order" else 1
    sent = nodes * size * others + size * others
    sums = blocks - nodes + (ranks * nodes - 1) / ranks
    held = size * (math.ceil(math.log2(blocks)) + 1 if way == "fixed order" else min(blocks, 2))
    return sent, 3 * size * sums, held


if __name__ == "__main__":
    main()
