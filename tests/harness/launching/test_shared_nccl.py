"""Ranks that share a GPU over NCCL: only when asked for, refused before a launch, never mixed up with others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from grpo_contract import InputError
from harness.inspection.compare import compare_subjects, load_subject
from harness.launching import shared_nccl
from harness.launching.shared_nccl import SHARED_NCCL, SWITCH, probed_version, switch_on, version_problem
from harness.planning.planned import Plan
from harness.planning.seating import seat
from harness.provenance.identity import Identity
from harness.ranks.rank_groups import BACKENDS
from harness.runs import request
from harness.runs.node_plan import elsewhere
from harness.runs.request import plan_for
from harness.settings.devices import Machine
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig
from reports import CaseResult, Report

ONE_GPU = Machine(8, 1, True)
FOUR_GPUS = Machine(8, 4, True)
SWITCH_NAME = "NCCL_MULTI_RANK_GPU_ENABLE"


def settings(**more: Any) -> RunConfig:
    return RunConfig(**{"batch": ("seed",), "controls": "off", "device": "cuda", **more})


def planned(monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...] | None, **more: Any) -> Plan:
    monkeypatch.setattr(request, "probed_version", lambda: version)
    return plan_for(settings(**more), ONE_GPU)


def test_a_shared_gpu_is_over_gloo_unless_nccl_is_asked_for() -> None:
    shared = {"ranks_per_device": 2, "tp": 2}
    assert seat(settings(**shared), ONE_GPU).transport == "gloo-shared-gpu"
    assert seat(settings(**shared, shared_transport="nccl"), ONE_GPU).transport == SHARED_NCCL
    assert seat(settings(tp=4, shared_transport="nccl"), ONE_GPU).ranks_per_device == 4
    assert BACKENDS[SHARED_NCCL] == BACKENDS["nccl"]


def test_the_plan_says_what_carries_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(monkeypatch, (2, 30, 3), tp=2, ranks_per_device=2, shared_transport="nccl", controls="on")
    assert (plan.transport, plan.ranks_per_device, plan.ranks) == ("nccl-shared-gpu", 2, 2)


@pytest.mark.parametrize(
    ("version", "got"), [((2, 28, 9), "NCCL 2.28.9"), ((2, 29, 7), "NCCL 2.29.7"), (None, "torch without NCCL")]
)
def test_an_older_nccl_is_refused_before_a_launch(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...] | None, got: str
) -> None:
    with pytest.raises(RequestError) as refused:
        planned(monkeypatch, version, tp=2, ranks_per_device=2, shared_transport="nccl")
    (problem,) = refused.value.problems
    assert (problem.where, problem.got) == ("--shared-transport", got)
    assert problem.expected.startswith("NCCL 2.30 or newer")


def test_the_version_is_asked_for_only_when_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "probed_version", lambda: pytest.fail("asked"))
    assert plan_for(settings(tp=2), ONE_GPU).transport == "gloo-shared-gpu"
    unshared = plan_for(settings(tp=2, shared_transport="nccl"), FOUR_GPUS)
    assert unshared.transport == "nccl"
    assert "--shared-transport changes nothing: every rank has a GPU of its own" in unshared.notes


def test_another_machine_is_not_judged_by_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "probed_version", lambda: pytest.fail("asked"))
    asked = settings(tp=2, ranks_per_device=2, shared_transport="nccl")
    assert plan_for(asked, elsewhere(asked)).transport == SHARED_NCCL


@pytest.mark.parametrize("more", [{"device": "cpu"}, {"device": "cpu", "virtual": True}])
def test_ranks_that_share_no_gpu_contradict_it(more: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="--shared-transport: expected ranks that share a GPU"):
        plan_for(settings(tp=2, shared_transport="nccl", **more))


def test_a_rank_allows_it_and_no_other_transport_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH_NAME, raising=False)
    monkeypatch.setattr(shared_nccl, "loaded_version", lambda: (2, 30, 3))
    for transport in ("gloo", "nccl", "gloo-shared-gpu", "virtual"):
        switch_on(transport)  # type: ignore[arg-type]
        assert SWITCH_NAME not in shared_nccl.os.environ
    monkeypatch.setenv(SWITCH_NAME, "0")
    switch_on(SHARED_NCCL)
    assert {SWITCH_NAME: shared_nccl.os.environ[SWITCH_NAME]} == SWITCH == {SWITCH_NAME: "1"}


def test_a_rank_with_an_older_nccl_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_nccl, "loaded_version", lambda: (2, 28, 9))
    with pytest.raises(InputError, match=r"NCCL 2\.30 or newer.*got NCCL 2\.28\.9"):
        switch_on(SHARED_NCCL)


def test_a_newer_nccl_has_no_problem() -> None:
    assert version_problem((2, 30, 0)) is version_problem((3, 0, 1)) is None


def fake_torch(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """A torch that a process started from now on would import, with an NCCL of this version."""
    (folder / "torch.py").write_text(
        "from types import SimpleNamespace as Has\n"
        "version = Has(cuda='13.0')\n"
        f"cuda = Has(nccl=Has(version=lambda: {version}))\n"
        "print('a line of its own')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.parametrize(
    ("version", "found"), [("(2, 31, 4)", (2, 31, 4)), ("(2, 28, 9)", (2, 28, 9)), ("1 / 0", None)]
)
def test_the_probe_says_what_a_process_of_its_own_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, found: tuple[int, ...] | None
) -> None:
    fake_torch(tmp_path, monkeypatch, version)
    assert probed_version() == found


@pytest.mark.parametrize("path", [None, "", os.pathsep])
def test_the_probe_runs_nothing_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    fake_torch(tmp_path, monkeypatch, "(2, 31, 4)")
    (tmp_path / "json.py").write_text("open('seen', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH") if path is None else monkeypatch.setenv("PYTHONPATH", path)
    assert probed_version() != (2, 31, 4)
    assert not Path("seen").exists()


def test_no_key_is_shared_with_another_transport(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shared = {"tp": 2, "ranks_per_device": 2}
    plans = [planned(monkeypatch, (2, 30), **shared, shared_transport=each) for each in ("gloo", "nccl")]
    (problem,) = Identity.of(plans[0]).differences(Identity.of(plans[1]))
    assert "transport" in problem.where
    for plan in plans:
        case = CaseResult(name="c", op="o", layout={"tp": 2, "dp": 1}, transport=plan.transport, batch="seed",
                          verdict="skipped", reason="none")  # fmt: skip
        text = Report.assemble(cases=[case]).to_json()
        assert json.loads(text)["cases"][0]["transport"] == plan.transport
        (tmp_path / f"{plan.transport}.json").write_text(text)
    folders = (tmp_path / "gloo-shared-gpu.json", tmp_path / "nccl-shared-gpu.json")
    found = compare_subjects(load_subject(folders[0]), load_subject(folders[1]), folders)
    assert [(each.where, each.before, each.after) for each in found.environment] == [
        ("transport", "gloo-shared-gpu", "nccl-shared-gpu")
    ]
