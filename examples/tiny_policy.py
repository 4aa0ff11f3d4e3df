"""Train the tiny policy: five seeds with the C++ program's random stream, and any number with torch's.

python -m examples.tiny_policy [--seeds 5] [--torch-seeds 30] [--updates 100] [--svg FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from harness.workloads.line_plot import svg_plot, text_plot
from harness.workloads.ranks import Place, RealDriver
from harness.workloads.tiny_policy import success
from harness.workloads.tiny_runs import train_many
from harness.workloads.tiny_training import TinyWorkload
from harness.workloads.training import Recipe, Update, train
from harness.workloads.uniform_stream import Mt19937Stream


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the exact success of each run as it grows, and a plot of it."""
    options = _options(arguments)
    torch.set_num_threads(1)
    curves = {f"seed {seed}": curve(seed, options.updates) for seed in range(options.seeds)}
    if curves:
        print(text_plot(curves))
        print("finals  " + "  ".join(f"{points[-1][1]:.6f}" for points in curves.values()))
    if options.torch_seeds:
        finals = train_many(range(options.torch_seeds), updates=options.updates, on_update=_shown)
        spread = f"{float(finals.min()):.4f} to {float(finals.max()):.4f}, mean {float(finals.mean()):.5f}"
        print(f"{len(finals)} seeds of torch's generator at once: {spread}")
    if options.svg:
        options.svg.write_text(svg_plot(curves, title="Exact success of the tiny policy"))


def curve(seed: int, updates: int) -> list[tuple[float, float]]:
    """(update, exact success) of one run, from before the first update."""
    workload = TinyWorkload(Mt19937Stream(seed))
    points = [(0.0, float(success(workload.table)))]

    def on_update(update: Update) -> None:
        points.append((float(update.number), float(success(workload.table))))
        print(f"\rseed {seed} update {update.number:3d} success {points[-1][1]:.6f}", end="", file=sys.stderr)

    RealDriver().run(train(workload, range(1, updates + 1), Place(), Recipe(), on_update))
    print(file=sys.stderr)
    return points


def _shown(number: int, success_R: torch.Tensor) -> None:
    end = "\n" if number % 100 == 0 else ""
    print(f"\rupdate {number:3d} mean success {float(success_R.mean()):.6f}", end=end, file=sys.stderr)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--torch-seeds", type=int, default=0)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--svg", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
