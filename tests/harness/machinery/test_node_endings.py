"""How a run under a user's own torchrun ends: two agents of one rank each, or one agent of two, real processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.files.rundir import RunDir
from harness.runs.node_plan import prepare_nodes
from harness.settings.run_config import RunConfig
from reports import Report, ReportVerdict
from support.machinery_faults import ROOT

DRIFTING = """
def loss(logits, *tensors, **context):
    return {"loss": logits.float().mean()}
"""
KILLED = """
import os, signal, time
import torch.distributed as dist
def loss(logits, *tensors, tp_group=None, **context):
    if tp_group is not None and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1.0 if tp_group is not None else 0.0)
    return {"loss": logits.float().mean()}
"""
REFUSED_BY_ONE = """
import os
if os.environ["RANK"] == "1":
    raise SystemExit("not here")
def loss(logits, *tensors, **context):
    return {"loss": logits.float().mean()}
"""
SLEEPING = """
import time
def loss(logits, *tensors, tp_group=None, **context):
    time.sleep(0.0 if tp_group is None else 60.0)
    return {"loss": logits.float().mean()}
"""


@dataclass
class Agent:
    """A torchrun whose ranks' output, with its own, goes to `log`."""

    process: subprocess.Popen[bytes]
    log: Path
    started: float = field(default_factory=time.monotonic)

    def ended(self, within: float = 90.0) -> int:
        """Its status."""
        try:
            return self.process.wait(within)
        finally:
            self.process.kill()

    @property
    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text()


def prepared(folder: Path, name: str = "run", **changes: object) -> Path:
    values = {"tp": 2, "dp": 1, "batch": ("seed",), "device": "cpu", "controls": "off", "out": folder / name}
    prepare_nodes(RunConfig(**{**values, **changes}))
    return folder / name


def with_op(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> str:
    """An op in `folder`, which becomes the current one."""
    (folder / "an_op_of_mine.py").write_text(source)
    monkeypatch.chdir(folder)
    return "an_op_of_mine:loss"


def agents(places: list[Path], folder: Path, ranks: int = 1) -> list[Agent]:
    """One agent for each of `places`, as one static group."""
    port, count = free_port(), len(places)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    environment["TMPDIR"] = str(folder / "private")
    (folder / "private").mkdir(exist_ok=True)
    started = []
    for number, place in enumerate(places):
        line = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(count), "--node-rank", str(number)]
        line += ["--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", str(port)]
        line += ["--max-restarts", "0", "-m", "harness.worker", str(place)]
        log = Path(tempfile.mkstemp(suffix=".log", dir=folder)[1])
        with log.open("wb") as file:
            process = subprocess.Popen(line, cwd=folder, env=environment, stdout=file, stderr=file)
        started.append(Agent(process, log))
    return started


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def report_of(place: Path) -> Report:
    return Report.from_json((place / "report.json").read_text())


@pytest.mark.parametrize(
    ("change", "field_name"), [({"seed": (5,)}, "plan.cases of rank 1"), ({"op": "mine"}, "plan.op of rank 1")]
)
def test_copies_of_a_plan_that_differ_are_refused_on_every_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], field_name: str
) -> None:
    op = with_op(tmp_path, monkeypatch, DRIFTING)
    change = {name: op if value == "mine" else value for name, value in change.items()}
    one, other = prepared(tmp_path, "one"), prepared(tmp_path, "other", **change)
    both = agents([one / "plan.json", other / "plan.json"], tmp_path)
    assert [each.ended() for each in both] == [1, 1]
    for each in both:
        assert each.text.count(f"{field_name}: expected ") == 1
        assert "exitcode  : 2" in each.text
        assert "harness/worker.py" not in each.text  # no traceback of ours
    report = report_of(one)
    assert report.exit_status == 2
    assert field_name in report.errors[0].message


@pytest.mark.parametrize("lacks", [0, 1])
def test_a_node_without_the_plan_makes_all_refuse(tmp_path: Path, lacks: int) -> None:
    places = [prepared(tmp_path, "one"), prepared(tmp_path, "other")]
    (places[lacks] / "plan.json").unlink()
    both = agents(places, tmp_path)
    assert [each.ended(60) for each in both] == [1, 1]
    for each in both:
        assert each.text.count(str(places[lacks] / "plan.json")) == 1
        assert "exitcode  : 2" in each.text
    assert (places[1] / "report.json").exists() is False
    assert lacks == 0 or report_of(places[0]).exit_status == 2


def test_an_op_that_changed_since_the_plan_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = prepared(tmp_path, op=with_op(tmp_path, monkeypatch, DRIFTING))
    (tmp_path / "an_op_of_mine.py").write_text(DRIFTING + "\n")
    (agent,) = agents([place], tmp_path, 2)
    assert agent.ended() == 1
    report = report_of(place)
    assert report.exit_status == 2
    assert "code of op an_op_of_mine:loss: expected " in report.errors[0].message
    assert "as when the run was prepared" in report.errors[0].message
    assert agent.text.count("as when the run was prepared") == 1


def test_every_node_leaves_with_the_status_of_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The op lies in the current folder, which PYTHONSAFEPATH keeps off the import path."""
    place = prepared(tmp_path, op=with_op(tmp_path, monkeypatch, DRIFTING))
    both = agents([place, place], tmp_path)
    assert [each.ended() for each in both] == [1, 1], both[0].text + both[1].text
    assert time.monotonic() - both[0].started < 60
    assert report_of(place).verdict is ReportVerdict.DRIFT


@pytest.mark.parametrize("name", [".", "plan.json"])
def test_a_killed_rank_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On the node of rank 0, where torchrun ends rank 0 for it; with a folder of each rank's own, too."""
    place = prepared(tmp_path, op=with_op(tmp_path, monkeypatch, KILLED))
    (agent,) = agents([place / name], tmp_path, 2)
    assert agent.ended() == 1
    report = report_of(place)
    assert report.exit_status == 4, agent.text
    assert report.culprit is not None
    assert report.culprit.startswith("rank 1 died in "), report.culprit


def test_a_refusal_of_another_rank_outweighs_the_end_of_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 waits in C++ for the one that refused, and cannot be interrupted there."""
    place = prepared(tmp_path, op=with_op(tmp_path, monkeypatch, REFUSED_BY_ONE))
    (agent,) = agents([place / "plan.json"], tmp_path, 2)
    assert agent.ended() == 1
    report = report_of(place)
    assert report.exit_status == 2, agent.text
    assert "SystemExit('not here')" in report.errors[0].message


def test_a_job_that_is_ended_is_no_ranks_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = prepared(tmp_path, op=with_op(tmp_path, monkeypatch, SLEEPING))
    (agent,) = agents([place], tmp_path, 2)
    wait_for(place / "cases" / "00000.json")
    agent.process.terminate()
    agent.ended()
    report = report_of(place)
    assert (report.exit_status, report.culprit) == (143, None), agent.text


def test_a_folder_at_work_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = prepared(tmp_path, op=with_op(tmp_path, monkeypatch, SLEEPING))
    (first,) = agents([place], tmp_path, 2)
    wait_for(place / "report.json")
    statuses = [json.loads(text) for text in written_statuses(place)]
    (second,) = agents([place], tmp_path, 2)
    assert second.ended() == 1
    assert second.text.count("grpo-verify: ") == 1
    assert "nodes.py" not in second.text  # no traceback of ours
    assert report_of(place).verdict is not ReportVerdict.REFUSED
    assert [json.loads(text)["pid"] for text in written_statuses(place)] == [each["pid"] for each in statuses]
    first.process.terminate()
    first.ended()


def written_statuses(place: Path) -> list[str]:
    paths = [RunDir.open(place).status(rank) for rank in (0, 1)]
    for path in paths:
        wait_for(path)
    return [path.read_text() for path in paths]


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.05)


def test_a_run_from_a_plan_file_leaves_nothing_but_its_report(tmp_path: Path) -> None:
    place = prepared(tmp_path)
    (agent,) = agents([place / "plan.json"], tmp_path, 2)
    assert agent.ended() == 0, agent.text
    assert report_of(place).exit_status == 0
    assert list((tmp_path / "private").glob("grpo-verify-*")) == []


@pytest.mark.parametrize(
    ("arguments", "words"), [(["run"], "started by torchrun, got no RANK"), ([], "got no argument")]
)
def test_the_worker_alone_says_what_it_lacks(arguments: list[str], words: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "-m", "harness.worker", *arguments],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
