"""`grpo-verify train`: settings, plan, verdicts of cases, and one real launch."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_contract import InputError
from harness.cli import main
from harness.files import report_file
from harness.files.rundir import RunDir
from harness.launching.blame import Culprit
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from harness.launching.launch_request import LaunchRequest
from harness.ranks.rank_groups import device_of
from harness.runs import launch_end
from harness.settings.config_sources import flag_source
from harness.settings.devices import Machine
from harness.settings.request_error import RequestError
from harness.workloads import model_place, train_command, train_run
from harness.workloads.train_plan import TrainCase, plan_training
from harness.workloads.train_result import train_result
from harness.workloads.train_run import make_report
from harness.workloads.train_settings import TrainSettings
from harness.workloads.trajectory import Recorded, State, TrajectoryComparison, digests_of
from reports import Report, Verdict


def test_degrees_are_the_divisors_above_one_then_the_controls() -> None:
    plan = plan_training(TrainSettings(dp=6))
    assert [case.degree for case in plan.cases if case.expect == "match"] == [2, 3, 6]
    assert [case.name for case in plan.cases if case.expect == "caught"] == [
        "gradients_all_reduced",
        "local_mean_of_tokens",
        "micro_batch_mean_of_tokens",
    ]
    assert {case.degree for case in plan.cases if case.expect != "match"} == {6}
    assert plan.ranks == 6


def test_one_rank_is_its_own_baseline_and_controls_are_skipped() -> None:
    plan = plan_training(TrainSettings(dp=1))
    assert [(case.degree, case.skip) for case in plan.cases] == [(1, None)] + [(1, "needs at least 2 ranks")] * 4


def test_controls_can_be_left_out() -> None:
    assert len(plan_training(TrainSettings(dp=4, controls="off")).cases) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"dp": "0"}, "--dp: expected at least 1, got 0"),
        ({"dp": "two"}, "--dp: expected an integer, got two"),
        ({"workload": "gpt"}, "--workload: expected one of tiny, language-model, got gpt"),
        ({"workload": "language-model"}, "--model: expected a folder, a GGUF file or a hub name"),
        ({"normalizer": "length_power"}, "--alpha: expected a number"),
        (
            {"workload": "language-model", "model": "x", "micro_batch": "3", "block": "2"},
            "--micro-batch: expected a multiple of --block 2, got 3",
        ),
        (
            {"samples": "4"},
            r"--samples: expected nothing \(it belongs to language-model; --workload is tiny\), got 4",
        ),
        ({"format": "pdf"}, "--format: expected one of terminal"),
        (
            {"json": True, "format": "html"},
            r"--format: expected json or nothing \(--json is given\), got html",
        ),
        ({"combine": "ring"}, "--combine: expected one of fixed_order, all_reduce, got ring"),
    ],
)
def test_wrong_requests_are_told_by_their_flag(flags: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        TrainSettings.of(flag_source(flags))


@pytest.mark.parametrize(
    ("model", "installed", "message"),
    [
        ("name", (), r"--model: expected transformers, installed \(pip install .*\), got not installed"),
        ("x.gguf", ("transformers",), "--model: expected gguf, installed"),
        ("/nowhere/x.gguf", ("transformers", "gguf"), "got /nowhere/x.gguf, which does not exist"),
        (__file__, ("transformers",), "--model: expected a folder, or a file that ends in .gguf"),
    ],
)
def test_a_model_that_cannot_be_is_refused_before_anything_is_launched(
    model: str, installed: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_place, "find_spec", lambda name: name in installed or None)
    settings = TrainSettings(workload="language-model", model=model)
    with pytest.raises(InputError, match=message):
        train_command.answer(settings, ("train",), lambda line: None)


NONE, ONE, TWO = Machine(8, 0, True), Machine(8, 1, True), Machine(8, 2, True)


@pytest.mark.parametrize(
    ("flags", "machine", "expected"),
    [
        ({"dp": 2}, TWO, ("cpu", "gloo", 1)),
        ({"dp": 2, "device": "auto"}, NONE, ("cpu", "gloo", 1)),
        ({"dp": 2, "device": "auto"}, TWO, ("cuda", "nccl", 1)),
        ({"dp": 1, "device": "cuda"}, ONE, ("cuda", "nccl", 1)),
        ({"dp": 2, "device": "cuda"}, TWO, ("cuda", "nccl", 1)),
        ({"dp": 2, "device": "cuda"}, ONE, ("cuda", "gloo-shared-gpu", 2)),
        ({"dp": 8, "device": "cuda"}, ONE, ("cuda", "gloo-shared-gpu", 8)),
        ({"dp": 5, "device": "cuda"}, TWO, ("cuda", "gloo-shared-gpu", 3)),
        ({"dp": 2, "device": "cuda", "ranks_per_device": 2}, TWO, ("cuda", "gloo-shared-gpu", 2)),
    ],
)
def test_where_training_ranks_sit(flags: dict[str, Any], machine: Machine, expected: tuple[object, ...]) -> None:
    plan = plan_training(TrainSettings(**flags), machine)
    assert (plan.device, plan.transport, plan.ranks_per_device) == expected


def test_ranks_per_device_on_the_cpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(LaunchOutcome(OutcomeKind.FINISHED, 1.0), monkeypatch)
    told = "--ranks-per-device is for GPUs, and these ranks are on the CPU"
    for device, machine in (("cpu", TWO), ("auto", NONE)):
        plan = plan_training(TrainSettings(device=device, ranks_per_device=3), machine)
        report = train_run.run_training(plan, out=None, on_progress=print, command=["grpo-verify", "train"])
        assert (plan.notes, report.notes) == ((told,), (told,))
    assert plan_training(TrainSettings(device="cuda", ranks_per_device=3), ONE).notes == ()
    assert plan_training(TrainSettings(), NONE).notes == ()


def test_more_ranks_than_the_devices_hold_are_refused() -> None:
    settings = TrainSettings(dp=4, device="cuda", ranks_per_device=1)
    message = r"--dp: expected at most 2 x 1 \(CUDA devices x --ranks-per-device\), got 4"
    with pytest.raises(RequestError, match=message):
        plan_training(settings, TWO)
    with pytest.raises(RequestError, match=r"--device: expected a CUDA device, got none \(no CUDA device found\)"):
        plan_training(settings, NONE)


def test_ranks_that_share_a_device_are_neighbours() -> None:
    plan = plan_training(TrainSettings(dp=4, device="cuda"), TWO)
    assert [device_of(plan, rank).index for rank in range(4)] == [0, 0, 1, 1]


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        TrainSettings.of(flag_source({"dp": "0", "updates": "-1", "workload": "x"}))
    assert {problem.where for problem in caught.value.problems} == {"--dp", "--updates", "--workload"}


def state(*values: float) -> State:
    return {
        "parameters:table": torch.tensor(values, dtype=torch.float32),
        "loss:loss": torch.tensor(0.5),
        "rewards:rewards": torch.ones(2),
    }


def compared(tmp_path: Path, expected: list[State], got: list[State]) -> TrajectoryComparison:
    recorded = Recorded(tmp_path, start={"parameters:table": "of other parameters"})
    for each in expected:
        recorded.record(each)
    comparison = TrajectoryComparison(recorded)
    for each in got:
        comparison.see(each)
    return comparison


def test_a_difference_names_update_parameter_and_element(tmp_path: Path) -> None:
    moved = torch.nextafter(torch.tensor(2.0), torch.tensor(3.0)).item()
    comparison = compared(tmp_path, [state(1, 2), state(1, 2)], [state(1, 2), state(1, moved)])
    place, _, values = str(comparison.parting).partition("]: ")
    assert place == "first difference: update 2, parameter table, element [1"
    assert values.startswith("expected 2.0 (0x40000000), got 2.000000238")
    tally = comparison.tallies["parameters"]
    assert (tally.elements, tally.mismatched, tally.max_ulp) == (4, 1, 1)


def test_bits_decide(tmp_path: Path) -> None:
    assert compared(tmp_path, [state(0.0)], [state(-0.0)]).parting is not None
    assert compared(tmp_path / "nan", [state(float("nan"))], [state(float("nan"))]).parting is None


def case_of(**fields: object) -> TrainCase:
    return TrainCase.model_validate(
        {"index": 0, "name": "case", "degree": 2, "settings": TrainSettings(), **fields}
    )


@pytest.mark.parametrize(
    ("fields", "got", "verdict"),
    [
        ({}, 1.0, Verdict.MATCH),
        ({"degree": 1}, 1.0, Verdict.INCONCLUSIVE),
        ({}, 1.0000001, Verdict.DRIFT),
        ({"expect": "caught"}, 1.0000001, Verdict.CAUGHT),
        ({"expect": "caught"}, 1.0, Verdict.MISSED),
        ({"expect": "caught", "mistake": "local_mean"}, 1.0000001, Verdict.MISSED),
        ({"expect": "caught", "mistake": "local_mean"}, 1.01, Verdict.CAUGHT),
        ({"expect": "any", "mistake": "local_mean"}, 1.0000001, Verdict.DRIFT),
    ],
)
def test_verdict_of_a_case(fields: dict[str, object], got: float, verdict: Verdict, tmp_path: Path) -> None:
    comparison = compared(tmp_path, [state(1.0)], [state(got)])
    result = train_result(case_of(**fields), comparison, [("a",), ("a",)], None, transport="gloo", seconds=1.0)
    assert settled(result) is verdict


def settled(result: object) -> Verdict:
    verdict: Verdict = result.settled().verdict  # type: ignore[attr-defined]
    return verdict


def test_parameters_that_never_move_prove_nothing(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [state(1.0)], [state(1.0)])
    comparison.expected.start = digests_of({"parameters:table": torch.tensor([1.0])})
    result = train_result(case_of(), comparison, [("a",), ("a",)], None, transport="gloo", seconds=1.0)
    assert (result.verdict, result.reason) == (
        Verdict.INCONCLUSIVE,
        "no update moved a parameter: equal parameters show nothing",
    )


def test_ranks_that_part_are_a_drift(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [state(1.0)], [state(1.0)])
    result = train_result(case_of(), comparison, [("a", "b"), ("a", "c")], None, transport="gloo", seconds=1.0)
    assert result.verdict is Verdict.DRIFT
    assert result.reason == "first difference: update 2, between the parameters of ranks 0 and 1"


def test_an_error_of_all_ranks_refuses_the_case() -> None:
    result = train_result(case_of(), None, [()], "invalid input: x", transport="gloo", seconds=1.0)
    assert (result.verdict, result.reason) == (Verdict.REFUSED, "invalid input: x")


def test_a_rank_that_dies_is_blamed(tmp_path: Path) -> None:
    plan = plan_training(TrainSettings(dp=2))
    outcome = LaunchOutcome(
        OutcomeKind.RANK_DIED, 1.0, Culprit((1,), "rank 1 died in case 'tiny dp 2'", None, "tiny dp 2")
    )
    report = make_report(plan, {}, outcome, RunDir.create(tmp_path), ["grpo-verify", "train"], 2.0)
    assert report.exit_status == 4
    assert report.cases[0].verdict is Verdict.FAILED
    assert "rank 1 died" in (report.culprit or "")


def launched(outcome: LaunchOutcome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that leaves states behind and ends like this."""

    def launch(request: LaunchRequest, *, on_case: object) -> LaunchOutcome:
        (request.rundir.path / "states").mkdir()
        return outcome

    monkeypatch.setattr(train_run, "launch", launch)


def run_tiny(out: Path | None) -> Report:
    return train_run.run_training(
        plan_training(TrainSettings()), out=out, on_progress=lambda line: None, command=["grpo-verify", "train"]
    )


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    launched(LaunchOutcome(OutcomeKind.FINISHED, 1.0), monkeypatch)
    monkeypatch.setattr(report_file, "write_atomic", full)
    report = run_tiny(tmp_path)
    assert report.exit_status == 4
    assert report.notes[-1].endswith("report.json: No space left on device")


def test_states_that_fill_the_disk_are_blamed_and_make_room_for_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    culprit = Culprit((0,), "rank 0 died in forward", None, "tiny dp 2")
    launched(LaunchOutcome(OutcomeKind.RANK_DIED, 1.0, culprit), monkeypatch)
    monkeypatch.setattr(
        launch_end, "full_disk", lambda folder: "no room" if (folder / "states").exists() else None
    )
    report = run_tiny(tmp_path)
    assert (report.culprit or "").startswith("rank 0 died in forward; no room (logs:")
    assert not list(tmp_path.glob("*/states"))
    assert json.loads((tmp_path / "report.json").read_text())["culprit"] == report.culprit


def test_a_wrong_flag_ends_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dp", "0"]) == 2
    assert "--dp: expected at least 1, got 0" in capsys.readouterr().err


def test_train_two_ranks_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dp", "2", "--updates", "2", "--json", "--out", str(tmp_path)]) == 0
    report = Report.from_json(capsys.readouterr().out)
    assert report.planted.caught == report.planted.total == 3
    match = report.cases[0]
    assert [(each.name, each.mismatched) for each in match.quantities] == [
        ("parameters", 0),
        ("loss", 0),
        ("rewards", 0),
    ]
    assert json.loads((tmp_path / "report.json").read_text())["exit_status"] == 0
    assert not list(tmp_path.glob("*/states"))
    assert SimpleNamespace(**report.environment).num_threads == 1
