"""The update that each length weight induces, exactly and from samples.

python -m examples.length_tradeoff [--groups 100000] [--svg FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.workloads.length_tradeoff import exact_update, table
from harness.workloads.line_plot import svg_plot, text_plot


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of the three alphas and a plot over all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args(arguments)
    rows = table(groups=options.groups)
    print("alpha  exact expected update  sampled     standard error")
    for row in rows:
        print(f"{row.alpha:<5}  {row.exact:<21.8f}  {row.sampled:.8f}  {row.standard_error:.8f}")
    curves = {
        "exact": [(alpha / 50, exact_update(alpha / 50)) for alpha in range(51)],
        "sampled": [(row.alpha, row.sampled) for row in rows],
    }
    print()
    print(text_plot(curves))
    if options.svg:
        options.svg.write_text(svg_plot(curves, title="Expected update by length weight L^(alpha - 1)"))


if __name__ == "__main__":
    main()
