"""Going on with an interrupted run: what is kept, and everything that makes it another run."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_contract import InputError
from harness.files.rundir import ENVIRONMENT, EXPECTED_ENVIRONMENT, RunDir, write_atomic
from harness.launching.status import Phase, RankStatus
from harness.planning.planned import Plan
from harness.provenance import identity
from harness.provenance.identity import write_identity
from harness.provenance.imported_files import note_imported, recorded
from harness.ranks.environment import check_environment
from harness.runs.earlier_run import ResumeError, earlier_run
from harness.runs.request import plan_for
from harness.runs.resume import KEPT, check_same, prepare, request_for
from harness.settings.config_sources import load_config
from harness.settings.run_config import RunConfig
from harness.system.processes import command_of
from support.machinery_faults import BEFORE, CATALOGUE, COMMAND, MACHINERY, ROOT, play

RESULT = {
    "name": "seed/s0/1x1",
    "op": "grpo_loss",
    "layout": {"tp": 1, "dp": 1},
    "batch": "seed",
    "verdict": "match",
}
CASE = json.dumps({**RESULT, "notes": ["a note"]})


@pytest.fixture
def plan() -> Plan:
    return plan_for(RunConfig(tp=2, batch=("seed",), device="cpu", controls="off"))


@pytest.fixture
def interrupted(tmp_path: Path, plan: Plan) -> Path:
    """A folder of --out with a run that finished its first case."""
    rundir = RunDir.create(tmp_path / "out")
    rundir.write_plan(plan.model_dump_json())
    rundir.write_case(0, CASE)
    write_atomic(rundir.path / ENVIRONMENT, json.dumps({"torch": "2.13.0", "variables": {"NCCL_X": "1"}}))
    write_identity(rundir, plan)
    return tmp_path / "out"


def test_the_same_run_goes_on_with_what_is_left(interrupted: Path, tmp_path: Path, plan: Plan) -> None:
    earlier = earlier_run(interrupted)
    check_same(earlier, plan)
    rundir = RunDir.create(tmp_path)
    todo = prepare(rundir, earlier, plan)
    assert [case.skip for case in todo.cases] == [KEPT, None]
    assert json.loads(rundir.case(0).read_text())["notes"] == ["a note", KEPT]
    assert json.loads((rundir.path / EXPECTED_ENVIRONMENT).read_text())["torch"] == "2.13.0"


def test_resume_alone_takes_the_interrupted_runs_own_plan(interrupted: Path, plan: Plan) -> None:
    found, earlier, _ = request_for(RunConfig(resume=interrupted, timeout=7.0))
    assert earlier is not None
    assert found == plan.model_copy(update={"timeout": 7.0})


def test_another_request_is_refused_with_what_differs(interrupted: Path) -> None:
    asked = RunConfig(tp=2, batch=("seed",), device="cpu", controls="off", beta=0.5, resume=interrupted)
    with pytest.raises(ResumeError, match=r"objective\.beta: expected .*, as in the interrupted run, got 0\.5"):
        request_for(asked)


def test_other_code_is_refused(interrupted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "code_digest", lambda: "f" * 64)
    with pytest.raises(ResumeError, match=r"code: expected .* as in the interrupted run, got ffff"):
        request_for(RunConfig(resume=interrupted))


def test_another_environment_is_refused_by_every_rank(interrupted: Path, tmp_path: Path, plan: Plan) -> None:
    rundir = RunDir.create(tmp_path)
    prepare(rundir, earlier_run(interrupted), plan)
    check_environment(rundir, {"torch": "2.13.0", "variables": {"NCCL_X": "1"}})
    with pytest.raises(InputError, match=r"environment\.torch: expected 2\.13\.0, as in the .*, got 2\.14\.0"):
        check_environment(rundir, {"torch": "2.14.0", "variables": {"NCCL_X": "1"}})


def test_a_changed_capture_is_another_run(tmp_path: Path, interrupted: Path, plan: Plan) -> None:
    capture = tmp_path / "mine.safetensors"
    capture.write_bytes(b"one")
    batch = plan.batches["seed"].model_copy(update={"source": "capture", "path": capture})
    with_capture = plan.model_copy(update={"batches": {"seed": batch}})
    rundir = RunDir.create(interrupted)
    write_identity(rundir, with_capture)
    check_same(earlier_run(rundir.path), with_capture)
    capture.write_bytes(b"two")
    with pytest.raises(ResumeError, match=r"captures\.seed"):
        check_same(earlier_run(rundir.path), with_capture)
    capture.unlink()
    with pytest.raises(ResumeError, match="unreadable: No such file"):
        check_same(earlier_run(rundir.path), with_capture)


def test_a_changed_file_that_the_op_imports_is_another_run(
    tmp_path: Path, interrupted: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "mine" / "helper_of_an_op.py"
    helper.parent.mkdir()
    helper.write_text("one = 1\n")
    monkeypatch.syspath_prepend(str(helper.parent))
    importlib.import_module("helper_of_an_op")
    earlier = earlier_run(interrupted)
    assert note_imported(earlier.rundir, 0) == len(sys.modules)
    assert str(helper) in recorded(earlier.rundir)
    assert not any(
        "site-packages" in name or name.startswith(f"{ROOT}/loss_ops/") for name in recorded(earlier.rundir)
    )
    check_same(earlier, plan)
    rundir = RunDir.create(tmp_path)
    prepare(rundir, earlier, plan)
    assert recorded(rundir) == recorded(earlier.rundir)
    for text, got in (("one = 2\n", "another content"), (None, "no such file")):
        helper.write_text(text) if text else helper.unlink()
        with pytest.raises(ResumeError, match=rf"helper_of_an_op.py, which the op imports: .* got {got}"):
            check_same(earlier, plan)


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ResumeError, match="expected a run directory, or a folder given to --out"):
        earlier_run(tmp_path / name)


def test_a_run_of_another_version_is_refused(interrupted: Path) -> None:
    path = earlier_run(interrupted).rundir.path / identity.IDENTITY
    path.write_text('{"plan": 1}')
    with pytest.raises(ResumeError, match="expected a run of this version"):
        earlier_run(interrupted)


@pytest.mark.parametrize("text", ["", CASE[:-9], "[]", "{}", CASE.replace("1x1", "2x1"), "\0"])
def test_a_damaged_case_is_run_again(interrupted: Path, tmp_path: Path, plan: Plan, text: str) -> None:
    path = earlier_run(interrupted).rundir.case(0)
    path.write_text(text)
    todo = prepare(RunDir.create(tmp_path), earlier_run(interrupted), plan)
    assert [case.skip for case in todo.cases] == [None, None]
    assert todo.notes[-1] == f"run again, because what was kept of it is damaged: {path}"


def test_sound_cases_are_kept_beside_a_damaged_one(interrupted: Path, tmp_path: Path, plan: Plan) -> None:
    rundir = earlier_run(interrupted).rundir
    rundir.write_case(1, "{")
    rundir.write_case(9, CASE)
    earlier = earlier_run(interrupted)
    assert [case.skip for case in prepare(RunDir.create(tmp_path), earlier, plan).cases] == [KEPT, None]
    assert [note.rpartition("/")[2] for note in earlier.notes] == ["00001.json", "00009.json"]


@pytest.mark.parametrize("text", [None, "", "{", "[]"])
@pytest.mark.parametrize("name", [identity.IDENTITY, ENVIRONMENT])
def test_another_damaged_file_is_refused_by_name(interrupted: Path, name: str, text: str | None) -> None:
    path = earlier_run(interrupted).rundir.path / name
    path.unlink()
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)
    with pytest.raises(ResumeError, match="a folder" if text is None else "a damaged file") as caught:
        earlier_run(interrupted)
    assert [problem.where for problem in caught.value.problems] == [str(path)]


def test_a_run_whose_ranks_are_at_work_is_refused(interrupted: Path) -> None:
    rundir = earlier_run(interrupted).rundir
    line = [sys.executable, "-c", "input()", str(rundir.path)]
    with subprocess.Popen(line, stdin=subprocess.PIPE) as rank:
        while os.fsencode(rundir.path) not in command_of(rank.pid):  # not yet shown while it is being started
            time.sleep(0.01)
        words = RankStatus(rank=1, pid=rank.pid, host="", phase=Phase.FORWARD, time=0.0)
        rundir.status(1).write_text(words.model_dump_json())
        with pytest.raises(ResumeError, match=rf"still at work \(rank 1 is process {rank.pid}\)"):
            earlier_run(interrupted)
        rank.kill()
    assert earlier_run(interrupted).cases


def test_the_command_goes_on_where_a_rank_died(tmp_path: Path) -> None:
    fault = next(each for each in CATALOGUE if each.name == "kill in compare")
    broken = play(fault, tmp_path, timeout=60, forked=True)
    assert broken.status == 4
    assert any("--resume" in note for note in broken.report["notes"])
    line = [
        sys.executable,
        str(MACHINERY / "faulty_cli.py"),
        "--forked",
        *COMMAND,
        "--resume",
        str(tmp_path / "out"),
    ]
    again = subprocess.run(
        line,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    report = json.loads(again.stdout)
    kept = [KEPT in case["notes"] for case in report["cases"]]
    assert kept[:BEFORE] == [True] * BEFORE
    assert not any(kept[BEFORE + 2 :])
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report


def begun(folder: Path, flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Path:
    """A folder of --out of a run that was interrupted before its first case."""
    settings = {"batch": ("seed",), "device": "cpu", "controls": "off"}
    config = load_config({**settings, **flags}, environ or {}, folder)
    write_identity(RunDir.create(folder / "out"), plan_for(config))
    return folder / "out"


def goes_on(folder: Path, environ: Mapping[str, str] | None = None, **flags: Any) -> Plan:
    return request_for(load_config({"resume": folder / "out", **flags}, environ or {}, folder))[0]


@pytest.mark.parametrize(
    "environ",
    [
        {"GRPO_VERIFY_BETA": "0.5"},
        {"GRPO_VERIFY_OP": "native"},
        {"GRPO_VERIFY_LAYOUTS": "1x2"},
        {"GRPO_VERIFY_SEED": "7"},
        {"GRPO_VERIFY_TP": "1"},
    ],
)
def test_a_variable_that_says_another_run_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    begun(tmp_path, {"tp": 2})
    with pytest.raises(ResumeError, match="as in the interrupted run"):
        goes_on(tmp_path, environ)


def test_a_variable_that_says_the_same_run_goes_on(tmp_path: Path) -> None:
    begun(tmp_path, {"tp": 2})
    same = {"GRPO_VERIFY_TP": "2", "GRPO_VERIFY_BETA": "0.04", "GRPO_VERIFY_TIMEOUT": "9"}
    assert goes_on(tmp_path, same).timeout == 9
    assert goes_on(tmp_path, {"GRPO_VERIFY_QUIET": "true"}).timeout == 120


def test_a_pyproject_that_was_there_goes_on_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool.grpo-verify]\nbeta = 0.08\ntp = 4\n")
    begun(tmp_path, {"tp": 2})
    plan = goes_on(tmp_path)
    assert plan.ranks == 2, "a flag of then replaces it still"
    assert plan.batches["seed"].contract.objective.beta == 0.08
    file.write_text("[tool.grpo-verify]\nbeta = 0.5\ntp = 4\n")
    with pytest.raises(ResumeError, match=r"objective\.beta: expected 0\.08, as in the interrupted run, got 0\.5"):
        goes_on(tmp_path)
    file.write_text("[tool.grpo-verify]\nbeta = 0.08\ntp = 1\n")
    with pytest.raises(ResumeError, match=r"cases\.seed/s0/2x1"):
        goes_on(tmp_path)


def test_an_op_that_is_not_found_from_here_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    (home / "resumed_op.py").write_text("def loss(*tensors, **context): ...\n")
    monkeypatch.chdir(home)
    out = begun(home, {"tp": 2, "op": "resumed_op:loss"})
    assert request_for(RunConfig(resume=out))[0].op == "resumed_op:loss"
    monkeypatch.chdir(away)
    words = f"op_code: expected resumed_op:loss, .* got nothing: the op was not found from here .{away}"
    with pytest.raises(ResumeError, match=words) as refused:
        request_for(RunConfig(resume=out))
    assert [problem.where for problem in refused.value.problems] == ["op_code"]
