"""N runs in a row of the command on the CPU, with random faults of the machinery.

    python tests/soak_faults.py --runs 100 --seed 0       random faults, the command as users run it
    python tests/soak_faults.py --table                   every fault once, as the table of docs/reliability.md

Every run must end with the right status, name the culprit, keep what was finished, leave no process behind and
not outlast its deadline. --forked starts ranks in 4 s instead of 10. Exit status 1 when one run was not so.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from support.machinery_faults import CATALOGUE, Ended, MachineryFault, complaints, play

LATE_SECONDS = 2.0


def one(fault: MachineryFault, options: argparse.Namespace, after: float) -> tuple[Ended, list[str]]:
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        ended = play(fault, Path(folder), timeout=options.timeout, forked=options.forked, after=after)
    # A signal once the ranks are done leaves the run's own end; one that is not heard at all is a fault.
    since = ended.after_fault
    came_too_late = fault.signal is not None and ended.status == 0 and since is not None and since < LATE_SECONDS
    return ended, complaints(CATALOGUE[0] if came_too_late else fault, ended, options.timeout)


def soak(options: argparse.Namespace) -> int:
    draw, bad, started = random.Random(options.seed), 0, time.time()
    for number in range(options.runs):
        # A third of the runs has no fault: a soak that never succeeds would prove little.
        fault = CATALOGUE[0] if draw.random() < 1 / 3 else draw.choice(CATALOGUE[1:])
        ended, wrong = one(fault, options, after=draw.uniform(0.0, 5.0))
        bad += bool(wrong)
        since = "" if ended.after_fault is None else f", {ended.after_fault:.1f} s after the fault"
        print(f"[{number + 1}/{options.runs}] {fault.name}: status {ended.status} in {ended.seconds:.1f} s{since}"
              f"{''.join(f' | WRONG {each}' for each in wrong)}", flush=True)  # fmt: skip
    print(f"{options.runs} runs in {time.time() - started:.0f} s, {bad} not as they must be")
    return int(bad > 0)


def table(options: argparse.Namespace) -> int:
    bad = 0
    print("| fault | status | what the report says | seconds from fault to end |\n|---|---|---|---|")
    for fault in (each for each in CATALOGUE if options.only in each.name):
        ended, wrong = one(fault, options, after=1.5 if options.forked else 3.0)
        bad += bool(wrong)
        said = next((line for line in ended.told.splitlines() if line.strip()), "-").partition(" (logs:")[0]
        seconds = "-" if ended.after_fault is None else f"{ended.after_fault:.1f}"
        print(f"| {fault.name} | {ended.status} | {said.replace('|', '/')} | {seconds} |", flush=True)
        for each in wrong:
            print(f"WRONG {fault.name}: {each}", file=sys.stderr, flush=True)
    return int(bad > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=8.0)
    parser.add_argument("--forked", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the command would rightly go on ignoring it
    return table(options) if options.table else soak(options)


if __name__ == "__main__":
    sys.exit(main())
