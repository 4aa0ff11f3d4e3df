"""Every layout that this machine's devices can hold, native and Triton, with all planted faults, in one go.

    python3 benchmarks/full_matrix.py --out DIR [--wheels DIR] [--seconds 520]
    python3 benchmarks/full_matrix.py --out DIR --device cpu --ranks 4       (a rehearsal over gloo)

Runs from a checkout and needs no network: packages that are missing are taken from `--wheels`. Leaves
`DIR/matrix.json` (every report, the times of each phase, what was not run and why) and `DIR/matrix.log`.
Layouts that need more devices than there are run with ranks that share them: over gloo, and over NCCL where it is
2.30 or newer (LD_PRELOAD may bring one). NVLink multicast stays off. The exit status is 0 when every run was
green and every case matched, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent
CAPTURE = ROOT / "tests" / "data" / "smollm2-b4-t8.safetensors"
CAPTURED_SEQUENCES = 4
BATCHES = ("seed", "long", "ragged", "wide")
NEEDED = ("pydantic", "cyclopts", "junitparser")
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
DEGREES = (1, 2, 4, 8)
ABOUT_DEVICES = """
import json, torch
from harness.launching.shared_nccl import SWITCH, loaded_version, version_problem
version, problem = loaded_version(), version_problem(loaded_version())
names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
about = {"devices": names, "torch": torch.__version__, "nccl": version}
print(json.dumps({**about, "shared_nccl_problem": problem and str(problem), "shared_nccl_switch": SWITCH}))
"""
PHASE_CONFIG = {"cuda": "4,8,256,32768", "cpu": "2,4,32,1024"}


@dataclass
class Matrix:
    """One run of everything: what is found so far, and how much time is left."""

    options: argparse.Namespace
    log: TextIO
    deadline: float
    environment: dict[str, str]
    found: dict[str, Any] = field(default_factory=lambda: {"runs": [], "phases": [], "not_run": []})

    def say(self, text: str) -> None:
        """Print and log."""
        print(text, flush=True)
        self.log.write(text + "\n")
        self.log.flush()

    def run(self, name: str, command: list[str], limit: float, **environment: str) -> Done | None:
        """What a command came to; None, and noted as not run, when it was not asked for or there was no time."""
        if self.options.only not in name:
            return self.skip(name, "--only", excused=True)
        limit = min(limit, self.deadline - time.monotonic())
        if limit < 15.0:
            return self.skip(name, "out of time")
        started = time.monotonic()
        done = finished(command, {**self.environment, **environment}, limit)
        self.log.write(done.text)
        if done.status is None:
            return self.skip(name, f"took more than {limit:.0f} s")
        self.say(f"{name}: status {done.status}, {time.monotonic() - started:.1f} s")
        return done

    def skip(self, name: str, why: str, *, excused: bool = False) -> None:
        """Note what was not run; excused is what this machine cannot hold, and what was not asked for."""
        self.found["not_run"].append({"name": name, "why": why, "excused": excused})
        self.say(f"{name}: not run, {why}")

    def save(self) -> None:
        """Write what is found so far."""
        (self.options.out / "matrix.json").write_text(json.dumps(self.found, indent=1) + "\n")


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit status: None when it was ended at its limit."""

    text: str
    status: int | None

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The lines that are JSON objects."""
        found = []
        for line in self.text.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [each for each in found if isinstance(each, dict)]


def finished(command: list[str], environment: dict[str, str], limit: float) -> Done:
    """Run `command` to its end, or end it with all that it started after `limit` seconds."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        return Done(process.communicate(timeout=limit)[0], process.returncode)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return Done(process.communicate()[0], None)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def main() -> int:
    """Run everything, write both files."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (options.out / "matrix.log").open("w") as log:
        matrix = Matrix(options, log, time.monotonic() + options.seconds, prepared_environment(options))
        try:
            return run_all(matrix)
        finally:
            matrix.save()


def run_all(matrix: Matrix) -> int:
    """Every step, what only this machine's own devices can show first; the exit status."""
    about_devices(matrix)
    devices = len(matrix.found["devices"])
    on_cuda = matrix.options.device == "cuda"
    ranks = matrix.options.ranks or (devices if on_cuda else 0)
    if ranks < 1 or (on_cuda and ranks > devices):
        sys.exit(f"full_matrix: expected a CUDA device for each rank, got {devices} for {ranks or 'any'}"
                 " (--device cpu --ranks N rehearses)")  # fmt: skip
    layouts = layouts_of(1, ranks)
    matrix.say(f"{ranks} ranks on {matrix.options.device}; layouts {', '.join(map(name_of, layouts))}")
    for op in ops_on(matrix):
        verify_batches(matrix, op, layouts, "over own devices")
    for layout in layouts:
        time_phases(matrix, layout)
    virtual_ranks(matrix)
    if on_cuda:
        shared_device(matrix)
        shared_nccl(matrix, ranks)
    for layout in layouts_of(ranks + 1, max(DEGREES)):
        why = f"needs {layout[0] * layout[1]}, has {ranks}"
        matrix.skip(f"{name_of(layout)} over its own devices", why, excused=True)
    compare_digests(matrix)
    return summary(matrix)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--seconds", type=float, default=520.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--ranks", type=int, default=0, help="without it, one rank on each CUDA device")
    parser.add_argument("--only", default="", help="only the steps whose name holds this text")
    parser.add_argument("--shared-ranks", type=int, default=8, help="ranks on one device, for comparison")
    return parser.parse_args()


def prepared_environment(options: argparse.Namespace) -> dict[str, str]:
    """The environment of every command: the checkout first, then what had to be unpacked; one thread a rank."""
    path = [str(ROOT)]
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        if options.wheels is None:
            sys.exit(f"full_matrix: expected {', '.join(missing)} installed, or --wheels DIR that holds them")
        site = options.out.resolve() / "site"
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site)]
        subprocess.run([*install, *map(str, sorted(options.wheels.glob("*.whl")))], check=True)
        path.append(str(site))
    inherited = os.environ.get("PYTHONPATH")
    path += [inherited] if inherited else []
    return {**os.environ, **NO_MULTICAST, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}


def layouts_of(least: int, most: int) -> list[tuple[int, int]]:
    """The layouts of `least` to `most` ranks."""
    return [(tp, dp) for tp in DEGREES for dp in DEGREES if least <= tp * dp <= most]


def about_devices(matrix: Matrix) -> None:
    """CUDA devices and versions, into the result; asked in a process that has the packages of `--wheels`."""
    done = finished([sys.executable, "-c", ABOUT_DEVICES], matrix.environment, 60.0)
    matrix.log.write(done.text)
    if not done.facts:
        sys.exit(f"full_matrix: expected a torch that tells its devices, got {done.text.strip() or 'nothing'}")
    matrix.found.update(done.facts[-1])


def ops_on(matrix: Matrix) -> tuple[str, ...]:
    """The ops that run on this device."""
    return ("native", "triton") if matrix.options.device == "cuda" else ("native",)


def verify_batches(matrix: Matrix, op: str, layouts: list[tuple[int, int]], where: str, *more: str) -> None:
    """The built-in batches with all faults; then the capture at the layouts that its sequences can fill."""
    verify(matrix, op, layouts, BATCHES, f"{op} {where}", *more)
    filled = [(tp, dp) for tp, dp in layouts if dp <= CAPTURED_SEQUENCES]
    verify(matrix, op, filled, (str(CAPTURE),), f"{op} {where}, a capture", "--no-controls", *more)


def verify(
    matrix: Matrix, op: str, layouts: list[tuple[int, int]], batches: tuple[str, ...], name: str, *more: str,
    **environment: str,
) -> None:  # fmt: skip
    """One run of the command, its report kept."""
    folder = matrix.options.out / name.replace(",", "").replace(" ", "-")
    command = [
        sys.executable, "-m", "harness.cli", "--device", matrix.options.device, "--op", op,
        "--layouts", ",".join(map(name_of, layouts)), "--batch", ",".join(batches), "--repeat", "2",
        "--out", str(folder.resolve()), *more,
    ]  # fmt: skip
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    done = matrix.run(name, command, 240.0, **environment)
    if done is not None and not report.exists():
        matrix.skip(name, "left no report; see the log")
    elif done is not None:
        kept = {"name": name, "op": op, "status": done.status, "report": json.loads(report.read_text())}
        matrix.found["runs"].append(kept)
        matrix.save()


def virtual_ranks(matrix: Matrix) -> None:
    """All layouts up to eight ranks in one process on one device."""
    for op in ops_on(matrix):
        verify(
            matrix, op, layouts_of(1, max(DEGREES)), BATCHES, f"{op} by virtual ranks", "--virtual",
            "--no-controls", **first_device(),
        )  # fmt: skip


def first_device() -> dict[str, str]:
    """Only the first of the devices that this process was given."""
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]}


def shared_device(matrix: Matrix) -> None:
    """The same layouts, and all up to eight ranks, with every rank on the first device."""
    ranks = matrix.options.shared_ranks
    flags = ("--ranks-per-device", str(ranks), "--no-controls")
    for op in ops_on(matrix):
        name = f"{op} on one shared device"
        verify(matrix, op, layouts_of(1, ranks), ("seed",), name, *flags, **first_device())


def shared_nccl(matrix: Matrix, devices: int) -> None:
    """The layouts that need more ranks than devices, over NCCL on all of them, as few ranks on each as needed."""
    layouts = layouts_of(devices + 1, matrix.options.shared_ranks)
    if layouts and (problem := matrix.found["shared_nccl_problem"]):
        matrix.skip("ranks that share devices over NCCL", problem, excused=True)
        return
    for ranks in sorted({tp * dp for tp, dp in layouts}):
        each = -(-ranks // devices)
        flags = ("--ranks-per-device", str(each), "--shared-transport", "nccl")
        alike = [(tp, dp) for tp, dp in layouts if tp * dp == ranks]
        for op in ops_on(matrix):
            verify_batches(matrix, op, [(1, 1), *alike], f"over NCCL, {each} ranks on a device", *flags)
        for layout in alike:
            time_phases(matrix, layout, ranks_per_device=each)


def time_phases(matrix: Matrix, layout: tuple[int, int], ranks_per_device: int = 1) -> None:
    """Agreement, gathers and the whole call at one layout."""
    (tp, dp), device = layout, matrix.options.device
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(tp * dp),
        "-m", "benchmarks.rank_phases", "--tp", str(tp), "--dp", str(dp), "--device", device,
        "--config", PHASE_CONFIG[device], "--backend", "triton" if device == "cuda" else "native",
        "--ranks-per-device", str(ranks_per_device),
    ]  # fmt: skip
    switch = matrix.found["shared_nccl_switch"] if ranks_per_device > 1 else {}
    name = f"phases at {name_of(layout)}" + (f", {ranks_per_device} ranks on a device" if switch else "")
    done = matrix.run(name, command, 45.0, **switch)
    if done is not None and (done.status or not done.facts):
        matrix.skip(name, f"ended with status {done.status}; see the log")
    elif done is not None:
        matrix.found["phases"] += done.facts


def compare_digests(matrix: Matrix) -> None:
    """Whether an op's bits on one rank are the same in all runs that held the batch, two at least."""
    seen: dict[tuple[str, str, str], dict[str, set[str]]] = {}
    for run in matrix.found["runs"]:
        for case in run["report"]["cases"]:
            for quantity in case["quantities"]:
                if digest := quantity.get("baseline_digest"):
                    runs = seen.setdefault((run["op"], case["batch"], quantity["name"]), {})
                    runs.setdefault(run["name"], set()).add(digest)
    shared = {key: set().union(*runs.values()) for key, runs in seen.items() if len(runs) > 1}
    unequal = [" ".join(key) for key, digests in shared.items() if len(digests) > 1]
    matrix.found["digests"] = {"compared": len(shared), "unequal": unequal}
    matrix.say(f"digests: {len(shared)} in two runs or more, {len(unequal)} unequal {', '.join(unequal)}".rstrip())


def summary(matrix: Matrix) -> int:
    """One line a run; the exit status."""
    green = bool(matrix.found["runs"]) and not matrix.found["digests"]["unequal"]
    green = green and all(each["excused"] for each in matrix.found["not_run"])
    for run in matrix.found["runs"]:
        report, planted = run["report"], run["report"]["planted"]
        cases = [case for case in report["cases"] if case["expect"] == "match"]
        matched = sum(case["verdict"] == "match" for case in cases)
        differing = sum(quantity["mismatched"] for case in cases for quantity in case["quantities"])
        matrix.say(
            f"{run['name']}: {report['verdict']}, {matched} of {len(cases)} cases match, {differing} differing"
            f" elements, faults {planted['caught']} of {planted['total']}"
        )
        green = green and run["status"] == report["exit_status"] == 0 and matched == len(cases)
    for times in matrix.found["phases"]:
        share = times["gathers"] / times["waited_call"]
        layout = name_of((times["tp"], times["dp"]))
        shared = f", {times['ranks_per_device']} ranks on a device" if times["ranks_per_device"] > 1 else ""
        matrix.say(
            f"{layout}{shared}: call {times['call']:.2f} ms, gathers {times['gathers']:.2f} ms ({share:.0%}),"
            f" preflight {times['preflight']:.2f} ms"
        )
    return 0 if green else 1


def name_of(layout: tuple[int, int]) -> str:
    """TPxDP."""
    return f"{layout[0]}x{layout[1]}"


if __name__ == "__main__":
    sys.exit(main())
