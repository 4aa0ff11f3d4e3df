"""A run under a user's own torchrun: two agents on this machine play two nodes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.files.rundir import RunDir, RunDirError
from harness.launching.launch_outcome import OutcomeKind
from harness.launching.status import CaseRef, Phase, RankError, RankStatus
from harness.runs.node_blame import outcome_of
from harness.runs.node_plan import prepare_nodes
from harness.runs.nodes import TORCHRUNS, run_node
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig
from reports import Report
from support.machinery_faults import ROOT

LOST = "Read error [127.0.0.1]:1: Connection reset by peer"


@pytest.fixture(autouse=True)
def _same_handlers() -> Iterator[None]:
    """Rank 0 outlives signals; the process that runs these tests must not."""
    before = {each: signal.getsignal(each) for each in TORCHRUNS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def prepared(folder: Path, **changes: object) -> RunConfig:
    values = {"tp": 2, "dp": 2, "batch": ("seed",), "device": "cpu", "controls": "off", "out": folder / "run"}
    return RunConfig(**{**values, **changes})


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def agent(place: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    line = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "two-nodes"),
        *("--max-restarts", "0", "-m", "harness.worker", str(place)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        return subprocess.Popen(line, env=environment, stdout=file, stderr=file)


def test_two_nodes_make_one_report(tmp_path: Path) -> None:
    """Through a plan file alone, as on nodes that share no folder; layouts span both nodes."""
    prepare_nodes(prepared(tmp_path))
    place, port = tmp_path / "run" / "plan.json", free_port()
    logs = [tmp_path / f"agent-{number}.log" for number in (0, 1)]
    agents = [agent(place, port, log) for log in logs]
    try:
        assert [each.wait(240) for each in agents] == [0, 0], "\n".join(log.read_text() for log in logs)
    finally:
        for each in agents:
            each.kill()
    report = Report.from_json((tmp_path / "run" / "report.json").read_text())
    assert report.exit_status == 0
    assert {str(case.layout): case.verdict.value for case in report.cases}["2x2"] == "match"
    assert sum(log.read_text().count("grpo-verify: match (exit 0)") for log in logs) == 1


def test_a_prepared_folder_says_how_to_run_it(tmp_path: Path) -> None:
    words = prepare_nodes(prepared(tmp_path))
    assert "NODES x RANKS is at least 4" in words
    assert f"-m harness.worker {tmp_path / 'run'}" in words
    with pytest.raises(RunDirError, match="an earlier run's directory"):
        prepare_nodes(prepared(tmp_path))


def test_a_folder_and_degrees_are_needed() -> None:
    with pytest.raises(RequestError) as caught:
        prepare_nodes(RunConfig(virtual=True))
    assert [problem.where for problem in caught.value.problems] == [
        "--out",
        "--layouts, --tp or --dp",
        "--virtual",
    ]


def test_cuda_nodes_can_be_prepared_from_a_machine_without(tmp_path: Path) -> None:
    prepare_nodes(prepared(tmp_path, device="cuda", tp=8, dp=8, batch=("seed",)))
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert (plan["device"], plan["transport"], plan["ranks"]) == ("cuda", "nccl", 64)


@pytest.mark.parametrize(
    ("world", "stale", "words"),
    [("2", False, "at least 4, got 2"), ("4", True, "results of 1 cases of an earlier run")],
)
def test_too_few_ranks_and_a_stale_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: str, stale: bool, words: str
) -> None:
    prepare_nodes(prepared(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    if stale:
        RunDir.open(tmp_path / "run").write_case(0, first_result())
    assert run_node(tmp_path / "run", 0, 0) == 2
    report = Report.from_json((tmp_path / "run" / "report.json").read_text())
    assert words in report.errors[0].message
    assert report.exit_status == 2


def first_result() -> str:
    return json.dumps(
        {
            "name": "seed/s0/1x1",
            "op": "grpo_loss",
            "layout": {"tp": 1, "dp": 1},
            "batch": "seed",
            "verdict": "match",
        }
    )


def status(rank: int, message: str | None = None, code: str = "RuntimeError") -> RankStatus:
    error = None
    if message is not None:
        error = RankError(phase=Phase.FORWARD, code=code, message=message, traceback="")
    phase = Phase.FAILED if error else Phase.FORWARD
    case = CaseRef(index=3, name="seed/s0/2x2")
    return RankStatus(rank=rank, pid=1, host="node", phase=phase, case=case, time=float(rank), error=error)


def test_a_cause_is_told_from_its_effects() -> None:
    words = {0: status(0, LOST), 3: status(3, "odd", "Oddity")}
    outcome = outcome_of(words, 4, 1.0)
    assert outcome.kind is OutcomeKind.RANK_FAILED
    assert outcome.culprit is not None
    assert outcome.culprit.reason == "rank 3 failed in forward of case 'seed/s0/2x2': Oddity: odd"


def test_ranks_that_said_nothing_are_at_fault() -> None:
    outcome = outcome_of({rank: status(rank, LOST) for rank in (0, 1, 3)}, 4, 1.0)
    assert outcome.culprit is not None
    assert outcome.culprit.ranks == (2,)
    assert "rank 2 ended or stopped answering without a last word, at case 'seed/s0/2x2'" in outcome.culprit.reason


def test_a_rank_that_was_only_told_to_end_is_not_at_fault() -> None:
    told = status(0, "SIGTERM", "Terminated")
    outcome = outcome_of({0: told, 1: status(1, LOST), 3: status(3, LOST)}, 4, 1.0)
    assert outcome.culprit is not None
    assert outcome.culprit.ranks == (2,)
    assert outcome_of({0: told}, 4, 1.0).signal == "SIGTERM"
    assert outcome_of({0: status(0, "SIGHUP", "Terminated")}, 4, 1.0).signal == "SIGHUP"


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"cases": []}'])
@pytest.mark.parametrize("name", ["run", "run/plan.json"])
def test_the_worker_without_a_plan_is_refused_by_one_rank_of_a_node(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    text: str | None,
) -> None:
    monkeypatch.setattr("harness.runs.nodes.SILENT_SECONDS", 0.0)
    prepare_nodes(prepared(tmp_path))
    path = tmp_path / "run" / "plan.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert [run_node(tmp_path / name, rank, rank) for rank in (0, 1)] == [2, 2]
    error = capsys.readouterr().err
    assert error.startswith(f"grpo-verify: unusable run directory: {path}: expected a ")
    assert error.count("\n") == 1


def test_a_folder_that_is_not_prepared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_node(tmp_path, 0, 0) == 2
    assert "expected a directory prepared by grpo-verify, got another directory" in capsys.readouterr().err
