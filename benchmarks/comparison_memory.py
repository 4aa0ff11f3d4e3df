"""Time and extra memory of comparing a gradient of 10**9 elements, equal, drifting in one place and everywhere.

python benchmarks/comparison_memory.py [elements]
"""

from __future__ import annotations

import sys
import time

import torch

from harness.comparing.comparison import compare

COLUMNS = 131072


def main() -> None:
    """Print a line for each kind of drift."""
    elements = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10**9
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    slots = max(8, elements // COLUMNS // 8 * 8)
    expected = torch.randn(8, slots // 8, COLUMNS, device=device)
    got = expected.clone()
    for name, change in (("equal", None), ("one element", 0), ("every element", 1)):
        if change == 0:
            got[7, -1, -3] += 1
        elif change == 1:
            got.mul_(2)
        _measure(name, expected, got)


def _measure(name: str, expected: torch.Tensor, got: torch.Tensor) -> None:
    before = _peak(expected.device, reset=True)
    started = time.perf_counter()
    drift = compare("grad_policy_logits", expected, got, (0, 0, 0), sharded=True)
    seconds, extra = time.perf_counter() - started, _peak(expected.device) - before
    size = expected.numel() * expected.element_size()
    print(
        f"{name}: {expected.numel():,} elements, {drift.mismatched:,} differ, {drift.first}, {seconds:.2f} s, "
        f"{extra / 2**20:.0f} MiB beside tensors of {size / 2**20:.0f} MiB each"
    )


def _peak(device: torch.device, *, reset: bool = False) -> int:
    if device.type == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
