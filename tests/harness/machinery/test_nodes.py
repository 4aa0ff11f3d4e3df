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

from grpo_contract import GRPOVerifyError, PreflightError, Problem
from harness.files.rundir import RunDir, RunDirError
from harness.launching.launch_outcome import OutcomeKind
from harness.launching.status import CaseRef, Phase, RankError, RankStatus
from harness.planning.planned import Plan
from harness.provenance.identity import write_identity
from harness.runs.node_blame import deaths_among, outcome_of
from harness.runs.node_meeting import Presence, check_agreement
from harness.runs.node_plan import prepare_nodes
from harness.runs.node_signals import TORCHRUNS
from harness.runs.nodes import run_node
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


def test_too_few_ranks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_nodes(prepared(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for _ in ("at first", "again, as the report of a refusal is in nobody's way"):
        assert run_node(tmp_path / "run", 0, 0) == 2
    report = Report.from_json((tmp_path / "run" / "report.json").read_text())
    assert "at least 4, got 2" in report.errors[0].message
    assert report.exit_status == 2


@pytest.mark.parametrize(
    ("kept", "words"), [("case", "results of 1 cases of an earlier run"), ("report", "the report of a run")]
)
def test_a_stale_folder_is_refused_and_left_as_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kept: str,
    words: str,
) -> None:
    prepare_nodes(prepared(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    rundir = RunDir.open(tmp_path / "run")
    if kept == "case":
        rundir.write_case(0, first_result())
    else:
        (rundir.path / "report.json").write_text("a report that says much")
    before = {path: path.read_bytes() for path in rundir.path.rglob("*") if path.is_file()}
    assert run_node(tmp_path / "run", 0, 0) == 2
    assert {path: path.read_bytes() for path in rundir.path.rglob("*") if path.is_file()} == before
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


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


def test_a_rank_whose_process_is_gone_outweighs_the_ends_it_caused() -> None:
    told = status(0, "SIGTERM", "Terminated")
    outcome = outcome_of({0: told, 1: status(1)}, 2, 1.0, died=(1,))
    assert outcome.kind is OutcomeKind.RANK_DIED
    assert outcome.culprit is not None
    assert outcome.culprit.reason == "rank 1 died in forward of case 'seed/s0/2x2', without a last word"
    refused = outcome_of({0: told, 1: status(1), 2: status(2, "no", "input")}, 3, 1.0, died=(1,))
    assert refused.kind is OutcomeKind.RANK_FAILED


def test_only_a_process_of_this_machine_without_a_last_word_is_known_to_be_dead() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = Presence.own(1, Path("/"), {}, []).model_copy(update={"pid": gone.pid})
    peers = {
        1: here,
        2: here.model_copy(update={"host": "elsewhere"}),
        3: here,
        4: Presence.own(4, Path("/"), {}, []),
    }
    assert deaths_among(peers, {1: status(1), 3: status(3, "SIGTERM", "Terminated")}) == (1,)


def test_a_capture_that_changed_after_the_plan_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    capture = tmp_path / "mine.safetensors"
    capture.write_bytes(b"one")
    prepare_nodes(prepared(tmp_path))
    rundir = RunDir.open(tmp_path / "run")
    plan = Plan.model_validate_json(rundir.plan.read_text())
    batch = plan.batches["seed"].model_copy(update={"source": "capture", "path": capture})
    plan = plan.model_copy(update={"batches": {"seed": batch}})
    rundir.write_plan(plan.model_dump_json())
    write_identity(rundir, plan)
    capture.write_bytes(b"two")
    assert run_node(rundir.path, 0, 0) == 2
    report = Report.from_json((rundir.path / "report.json").read_text())
    assert f"capture seed ({capture}): expected " in report.errors[0].message
    assert capsys.readouterr().err.count("\n") == 1


def test_what_ranks_refuse_is_told_once_with_its_ranks() -> None:
    problem = Problem("error.world", "ranks", "4", "2")
    one, other = (Presence.own(rank, Path("/"), {"plan.op": "a"}, [problem]) for rank in (0, 1))
    with pytest.raises(GRPOVerifyError, match=r"^invalid request: ranks: expected 4, got 2$"):
        check_agreement({0: one, 1: other})
    with pytest.raises(GRPOVerifyError, match=r"^invalid request: ranks of rank 1: expected 4, got 2$"):
        check_agreement({0: one.model_copy(update={"refusals": ()}), 1: other})


def test_the_first_rank_that_differs_is_named_with_both_values() -> None:
    ranks = {rank: Presence.own(rank, Path("/"), {"plan.op": op}, []) for rank, op in enumerate("aabb")}
    with pytest.raises(PreflightError, match=r"plan.op of rank 2: expected a, as rank 0, got b$"):
        check_agreement(ranks)


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"cases": []}'])
@pytest.mark.parametrize("name", ["run", "run/plan.json"])
def test_the_worker_without_a_plan_is_refused_by_one_rank_of_a_node(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    text: str | None,
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
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
