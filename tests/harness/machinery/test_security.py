"""What a run leaves open: no socket beyond loopback, nothing unpickled, no file that others can read."""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.files.rundir import RunDir
from harness.launching.launch_request import LaunchRequest, torchrun_command, worker_environment
from support.machinery_faults import ROOT, RUN

PACKAGES = ("grpo_contract", "loss_ops", "reports", "harness")
UNPICKLE = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
UNPICKLING_CALLS = {
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("recv_object_list", "send_object_list"),
}
LISTENING = "0A"
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def unpickling(tree: ast.AST) -> Iterator[str]:
    """Every import or call that turns foreign bytes into objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in UNPICKLE)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in UNPICKLE:
            yield str(node.module)
        elif isinstance(node, ast.Attribute):
            is_torch_load = node.attr == "load" and isinstance(node.value, ast.Name) and node.value.id == "torch"
            if is_torch_load or node.attr in UNPICKLING_CALLS:
                yield node.attr


def test_nothing_is_unpickled() -> None:
    found = [f"{path}: {name}" for path in sources() for name in unpickling(ast.parse(path.read_text()))]
    assert found == []
    guilty = "import pickle\nimport torch.distributed as dist\ndist.all_gather_object([], 1)\ntorch.load('x')"
    assert sorted(unpickling(ast.parse(guilty))) == ["all_gather_object", "load", "pickle"]


def test_a_launch_stays_on_loopback_whatever_the_shell_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "eth0")
    request = LaunchRequest(2, RunDir.create(tmp_path))
    environment = worker_environment(request, "mark")
    assert environment["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert environment["NCCL_SOCKET_IFNAME"].startswith("lo")
    command = torchrun_command(request)
    assert command[command.index("--rdzv-conf") + 1] == "store_type=file"
    assert Path(command[command.index("--rdzv-endpoint") + 1]).parent == request.rundir.path


def marked(mark: str) -> set[str]:
    """The processes of one run."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{RUN}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.add(entry.name)
        except OSError:
            continue
    return found


def listening(pids: set[str]) -> set[str]:
    """The local addresses, in hexadecimal, on which any of these processes listens."""
    own = set()
    for pid in pids:
        try:
            own |= {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
        except OSError:
            continue
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in own}


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system shows no table of its sockets")
def test_a_run_listens_on_loopback_only_and_its_files_are_private(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    line = [
        sys.executable,
        "-m",
        "harness.cli",
        "--layouts",
        "2x1",
        "--batch",
        "seed",
        "--controls",
        "off",
        "--json",
    ]
    run = subprocess.Popen(
        [*line, "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(ROOT), RUN: mark, "GLOO_SOCKET_IFNAME": "nowhere0"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    addresses: set[str] = set()
    while run.poll() is None:
        addresses |= listening(marked(mark))
        time.sleep(0.02)
    assert json.loads(run.communicate()[0])["exit_status"] == 0
    assert addresses, "gloo must have been seen to listen, or this test looks at nothing"
    assert addresses <= LOOPBACK
    (rundir,) = (tmp_path / "out").glob("grpo-verify-*")
    for path in (rundir, *rundir.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert stat.S_IMODE((tmp_path / "out" / "report.json").stat().st_mode) == 0o600
