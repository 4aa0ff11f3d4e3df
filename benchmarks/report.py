"""What every benchmark prints: the device, the measured bandwidth, and one row per case."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.timing import Timing, copy_bandwidth, device_or_reason

COLUMNS = ("case", "ms", "min", "max", "loop ms", "host ms", "floor ms", "x floor", "extra MB")


@dataclass
class Report:
    """Rows of a benchmark, printed as they come, or as JSON at the end."""

    name: str
    as_json: bool
    bandwidth: float
    rows: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, options: argparse.Namespace) -> Report:
        """Measure the bandwidth and print the heading; exit with a reason where there is no device."""
        reason = device_or_reason()
        if reason is not None:
            sys.exit(f"{name}: skipped, {reason}")
        report = cls(name, options.json, copy_bandwidth())
        if not options.json:
            print(f"{name} on {report.heading()}")
        return report

    def heading(self) -> str:
        """Device, versions, date and bandwidth."""
        import triton

        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        return (
            f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, {today}; "
            f"copy bandwidth {self.bandwidth / 1e9:.3f} TB/s"
        )

    def section(self, title: str, **facts: Any) -> None:
        """A table for one shape."""
        self.rows.append({"section": title, **facts})
        if not self.as_json:
            told = ", ".join(f"{key} {value}" for key, value in facts.items())
            print(f"\n{title}" + (f" ({told})" if told else ""))
            print("  " + f"{COLUMNS[0]:44s}" + "".join(f"{name:>10s}" for name in COLUMNS[1:]), flush=True)

    def row(self, case: str, timing: Timing, floor_bytes: float | None = None, **facts: Any) -> None:
        """One case; `floor_bytes` is what it must move at least."""
        floor = None if floor_bytes is None else floor_bytes / self.bandwidth
        ratio = None if floor is None else timing.median / floor
        self.rows.append({"case": case, **timing.as_dict(), "floor_ms": floor, "over_floor": ratio, **facts})
        if not self.as_json:
            shown = [timing.median, timing.least, timing.most, timing.loop, timing.host]
            cells = "".join(f"{value:10.4f}" for value in shown)
            cells += (
                f"{floor:10.4f}{ratio:10.3f}" if floor is not None and ratio is not None else f"{'-':>10s}" * 2
            )
            told = "".join(f"  {key} {value}" for key, value in facts.items())
            print(f"  {case:44s}{cells}{timing.extra_mb:10.1f}{told}", flush=True)

    def note(self, text: str) -> None:
        """A line that is no row."""
        self.rows.append({"note": text})
        if not self.as_json:
            print(f"  {text}", flush=True)

    def finish(self) -> None:
        """Print the JSON, where that was asked for."""
        if self.as_json:
            print(json.dumps({"benchmark": self.name, "device": self.heading(), "rows": self.rows}, indent=1))


def options_for(description: str | None, default_configs: str, dtype: str = "float16") -> argparse.Namespace:
    """`--json`, `--repeats`, `--dtype` and `--configs "P,S,L,V;..."` (prompts, samples, length, vocabulary)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--dtype", default=dtype, choices=("float16", "bfloat16", "float32"))
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--configs", type=_configs, default=_configs(default_configs))
    return parser.parse_args()


def _configs(text: str) -> list[tuple[int, ...]]:
    configs = [tuple(int(part) for part in each.split(",")) for each in text.split(";") if each.strip()]
    if not configs:
        raise argparse.ArgumentTypeError("no configs")
    return configs
