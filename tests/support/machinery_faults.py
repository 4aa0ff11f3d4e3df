"""Faults of the machinery, and what the command must make of each: status, words, earlier results, nobody left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MACHINERY = Path(__file__).resolve().parents[1] / "harness" / "machinery"
ROOT = MACHINERY.parents[2]
COMMAND = ("--tp", "2", "--dp", "2", "--batch", "seed", "--json")
CASE = "seed/s0/2x2"
BEFORE = 2
"""Cases that have a result before it, at least: rank 0 may still be writing the third."""
RUN = "GRPO_TEST_RUN"
NOT_GOOD = ("drift", "refused", "failed")
START_SECONDS = 90.0
"""How long a launch may take to come to its first case, on a busy machine."""
START_TIMEOUT = 40.0
"""The deadline of ranks that are not ready yet, as faulty_cli.py sets it."""
GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class MachineryFault:
    """One fault: what a rank does, or which signal the parent gets, and what must come of it.

    `words` must be found in the culprit or the errors of the report; `kept` is the least number of cases
    with a result; `deadlines` counts how many times --timeout may pass before the end.
    """

    name: str
    status: int
    words: str = ""
    fault: dict[str, Any] = field(default_factory=dict)
    signal: signal.Signals | None = None
    kept: int = 0
    deadlines: int = 0
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """The phase in which it happens."""
        return str(self.fault.get("phase", "forward"))


def _acts() -> list[MachineryFault]:
    """Every act at every phase, on rank 1 of the case at 2x2; the report is written by rank 0."""
    found = []
    for phase in ("start", "preflight", "forward", "backward", "compare", "report"):
        rank, kept = (0 if phase == "report" else 1), (0 if phase == "start" else BEFORE)
        place = "start" if phase == "start" else "compare" if phase == "report" else phase
        for act, words in _WORDS.items():
            fault = {"act": act, "phase": phase, "case": CASE, "ranks": [rank]}
            text = words.format(rank=rank, place=place)
            deadlines = (1 if phase == "start" else 2) if act == "hang" else 0
            found.append(MachineryFault(f"{act} in {phase}", 4, text, fault, None, kept, deadlines))
    return found


_WORDS = {
    "kill": r"rank {rank} died in (phase )?{place}.*signal 9",
    "hang": r"rank {rank} (stopped answering in {place}|did not get ready)",
    "raise": r"rank {rank} failed in (phase )?{place}.*planted error",
    "memory": r"rank {rank} failed in (phase )?{place}.*MemoryError",
    "address_space": r"rank {rank} (failed|died) in (phase )?{place}",
}


def _call(act: str, status: int, words: str, deadlines: int = 0) -> MachineryFault:
    return MachineryFault(act, status, words, {"act": act, "ranks": [1]}, deadlines=deadlines)


CATALOGUE: tuple[MachineryFault, ...] = (
    MachineryFault("nothing", 0, kept=17),
    *_acts(),
    MachineryFault(
        "leave in forward", 4, r"rank 1 died in forward.*exit status 7",
        {"act": "leave", "phase": "forward", "case": CASE, "ranks": [1]}, kept=BEFORE,
    ),
    MachineryFault(
        "stopped in forward", 4, r"^rank 1 is stopped \(by a signal.*\), in forward of case",
        {"act": "stop", "phase": "forward", "case": CASE, "ranks": [1]}, kept=BEFORE, deadlines=1,
    ),
    MachineryFault(
        "one of our errors on one rank", 4, r"rank 1 alone refused.*rewards\[0\]",
        {"act": "alone", "phase": "forward", "case": CASE, "ranks": [1]}, kept=BEFORE, deadlines=2,
    ),
    MachineryFault(
        "disk full in a rank", 4, r"rank 0 (failed|died) in compare",
        {"act": "disk_full", "phase": "report", "case": CASE, "ranks": [0]}, kept=BEFORE,
    ),
    _call("beta", 2, r"tp 1.*beta.*0\.5|beta.*tp 1.*0\.5|beta.*0\.5"),
    _call("geometry", 2, r"group_boundaries"),
    _call("inputs", 2, r"rewards"),
    _call("version", 2, r"of-yesterday"),
    _call("wrong_shape", 1, r"per_sequence_policy: expected \[8\].*got \[7\].* on tp=[01] dp=[01]"),
    _call("short_message", 4, r"rank"),
    _call("other_collective", 4, r"rank", 2),
    MachineryFault("SIGINT to the parent", 130, signal=signal.SIGINT),
    MachineryFault("SIGTERM to the parent", 143, signal=signal.SIGTERM),
    MachineryFault("SIGHUP to the parent", 129, signal=signal.SIGHUP),
    MachineryFault("disk full at the report", 4, r"report.*File too large", kept=17,
                   variables={"GRPO_TEST_LARGEST_FILE": "24000"}),
)  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """What one run of the command came to."""

    status: int
    report: dict[str, Any]
    seconds: float
    after_fault: float | None
    errors: str
    orphans: list[str]

    @property
    def told(self) -> str:
        """Everything that the report says about the cause."""
        errors = [error["message"] for error in self.report.get("errors", ())]
        asked = [case for case in self.report.get("cases", ()) if case["expect"] == "match"]
        cases = [case for case in asked if case["verdict"] in NOT_GOOD]
        reasons = [case["reason"] or "" for case in cases]
        drifts = [f"{each['name']}: expected {each['first']['expected']}, got {each['first']['got']} on"
                  f" tp={each['first']['owner']['tp']} dp={each['first']['owner']['dp']}"
                  for case in cases for each in case["quantities"] if each["first"]]  # fmt: skip
        notes = [note for note in self.report.get("notes", ()) if "report" in note]
        return "\n".join([self.report.get("culprit") or "", *errors, *reasons, *drifts, *notes])

    @property
    def finished(self) -> int:
        """How many cases have a result."""
        unfinished = ("skipped", "failed")
        return sum(case["verdict"] not in unfinished for case in self.report.get("cases", ()))


def play(
    fault: MachineryFault, folder: Path, *, timeout: float, forked: bool, after: float | None = None
) -> Ended:
    """Run the command with `fault` in it; its signal comes `after` seconds after the parent starts its ranks."""
    mark, stamp, told = uuid.uuid4().hex, folder / "stamp", folder / "stderr.txt"
    planted = {**fault.fault, "stamp": str(stamp)} if fault.fault else {}
    variables = {RUN: mark, "GRPO_TEST_FAULT": json.dumps(planted), **fault.variables}
    line = [sys.executable, str(MACHINERY / "faulty_cli.py"), *(["--forked"] if forked else []), *COMMAND]
    started = time.time()
    with told.open("w") as errors:
        parent = subprocess.Popen(
            [*line, "--timeout", str(timeout), "--out", str(folder / "out")],
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    if fault.signal is not None:
        _await(told, "starting", started + START_SECONDS)
        time.sleep(after or 0.0)
        stamp.write_text(str(time.time()))
        parent.send_signal(fault.signal)
    try:
        out, _ = parent.communicate(timeout=START_SECONDS + fault.deadlines * (timeout + GRACE_SECONDS) + 60)
    finally:
        parent.kill()
    ended = time.time()
    since = ended - float(stamp.read_text()) if stamp.exists() else None
    report = json.loads(out) if out.lstrip().startswith("{") else {}
    return Ended(parent.returncode, report, ended - started, since, told.read_text(), orphans(mark))


def _await(file: Path, word: str, end: float) -> None:
    while word not in file.read_text() and time.time() < end:
        time.sleep(0.05)


def orphans(mark: str) -> list[str]:
    """The command lines of running processes that carry the mark of one run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"{RUN}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
            zombie = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"
            if marked and not zombie:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def complaints(fault: MachineryFault, ended: Ended, timeout: float) -> list[str]:
    """What is not as it must be; nothing when all is well."""
    found = []
    if ended.status != fault.status:
        found.append(f"exit status: expected {fault.status}, got {ended.status}")
    if ended.report.get("exit_status", ended.status) != ended.status:
        found.append(f"the report says exit status {ended.report['exit_status']}, the command {ended.status}")
    if not re.search(fault.words, ended.told, re.DOTALL):
        found.append(f"cause: expected {fault.words!r}, got {ended.told!r}")
    if ended.finished < fault.kept:
        found.append(f"earlier results: expected at least {fault.kept}, got {ended.finished}")
    if ended.orphans:
        found.append(f"left behind: {ended.orphans}")
    deadline = START_TIMEOUT if fault.phase == "start" else timeout
    # The second look at a hang starts ranks of its own, and then has the same deadline.
    allowed = (
        min(fault.deadlines, 1) * deadline + (fault.deadlines > 1) * (START_SECONDS + timeout) + GRACE_SECONDS
    )
    if ended.after_fault is not None and fault.status != 0 and ended.after_fault > allowed:
        found.append(f"end: expected within {allowed:g} s of the fault, took {ended.after_fault:.1f} s")
    return found
