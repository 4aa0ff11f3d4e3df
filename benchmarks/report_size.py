"""What rendering a large report costs: seconds, peak memory and size, for each format in a process of its own.

Every tenth case drifts in three quantities, with a histogram, shares and a heat map of 64 x 64 cells each, of
which a report keeps the first hundred. The memory is that of the whole process, loading included. Linux only.

    python benchmarks/report_size.py [--cases 10000] [--formats html junit] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from reports import CaseResult, FirstDrift, Layout, QuantityResult, Rank, Report, Verdict, render
from reports.diagnosis import Bin, Diagnosis, HeatMap, RankShare, Shares
from reports.formats import RENDERERS

PLAIN = ("loss", "policy_loss", "kl", "per_sequence_active_tokens", "advantages", "clip_counts")
MOVED = ("per_sequence_policy", "per_sequence_kl", "grad_policy_logits")
EDGE = 64


def main() -> None:
    """Measure every format and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--formats", nargs="+", choices=RENDERERS, default=list(RENDERERS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--render", nargs=2, metavar=("REPORT", "FORMAT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.render:
        print(json.dumps(measured(Path(options.render[0]), options.render[1])))
        return
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "report.json"
        saved.write_text(Report.assemble(cases=cases(options.cases)).to_json(), encoding="utf-8")
        rows = {name: in_a_child(saved, name) for name in options.formats}
        size = saved.stat().st_size
    print(json.dumps(rows) if options.json else as_table(rows, options.cases, size))


def cases(count: int) -> Iterator[CaseResult]:
    """Cases of one report, one in ten of them drifting."""
    for index in range(count):
        drifts = index % 10 == 0
        moved = [drifting(name) if drifts else matching(name) for name in MOVED]
        yield CaseResult(
            name=f"seed/s{index}/2x4",
            op="grpo_loss",
            layout=Layout(tp=1 + index % 8, dp=1 + index % 5),
            transport="gloo",
            batch=f"batch-{index % 40}",
            seed=index,
            verdict=Verdict.DRIFT if drifts else Verdict.MATCH,
            quantities=(*map(matching, PLAIN), *moved),
            diagnosis=Diagnosis(pattern="rounding", words="rounding only") if drifts else None,
        )


def matching(name: str) -> QuantityResult:
    """A quantity that is equal."""
    return QuantityResult(name=name, verdict=Verdict.MATCH, elements=EDGE, nonzero_share=1.0)


def drifting(name: str) -> QuantityResult:
    """A quantity that drifts, with all that a diagnosis holds."""
    bits = {"expected": "1.0", "got": "2.0", "expected_bits": "0x3f800000", "got_bits": "0x40000000"}
    bins = tuple(Bin(start=at, stop=at + 1, mismatched=at, elements=EDGE) for at in range(EDGE))
    ranks = tuple(RankShare(tp=at, dp=0, mismatched=at, elements=EDGE) for at in range(8))
    return QuantityResult(
        name=name,
        verdict=Verdict.DRIFT,
        elements=EDGE * EDGE,
        mismatched=EDGE,
        max_ulp=7,
        max_abs=1e-7,
        first=FirstDrift(sequence=3, token=17, column=5, owner=Rank(tp=1, dp=0), **bits),
        sequences=tuple(range(EDGE)),
        ulp_histogram=(0, 40, 20, 4),
        shares=Shares(sequence=bins, token=bins, tile=bins, rank=ranks),
        heat_map=HeatMap(token_width=EDGE, rows=tuple(tuple(range(EDGE)) for _ in range(EDGE))),
    )


def in_a_child(saved: Path, name: str) -> dict[str, float]:
    """Render in a fresh process, whose peak memory is that of one format."""
    command = [sys.executable, __file__, "--render", str(saved), name]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def measured(saved: Path, name: str) -> dict[str, float]:
    """Processor seconds of loading and of rendering, the peak in MB of both, and the bytes of the text."""
    started = time.process_time()
    report = Report.from_json(saved.read_text(encoding="utf-8"))
    loaded = time.process_time()
    text = render(report, name, width=100)
    ended = time.process_time()
    return {
        "load": loaded - started,
        "render": ended - loaded,
        "peak_mb": peak_mb(),
        "bytes": len(text.encode()),
    }


def peak_mb() -> float:
    """The most memory this process held so far; unlike ru_maxrss, not that of the process that started it."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def as_table(rows: dict[str, dict[str, float]], count: int, size: int) -> str:
    """The measurements as lines of text."""
    lines = [f"{count:,} cases, {size / 1e6:.1f} MB of JSON"]
    for name, row in rows.items():
        seconds = f"load {row['load']:5.2f} s   render {row['render']:5.2f} s"
        lines.append(f"{name:9} {seconds}   peak {row['peak_mb']:5.0f} MB   text {row['bytes'] / 1e6:6.2f} MB")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
