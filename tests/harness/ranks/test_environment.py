"""What a result depends on beside the contract: the processor's model above all."""

import json
import platform
from pathlib import Path

import pytest
import torch

from grpo_contract import GRPOLossContract
from harness.files.rundir import ENVIRONMENT, RunDir
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from harness.own_ops.ops import launch_of
from harness.planning.plan import make_plan
from harness.ranks.environment import environment, processor
from harness.runs.run_report import make_report
from harness.settings.run_config import RunConfig
from loss_ops.distributed_loss import DistributedGRPOLossOp
from reports import Report


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: X 9\n\nprocessor\t: 1\nmodel\t: 3\n",
            ["X 9", "family 25", "model 17"],
        ),
        (
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n",
            [f"{platform.machine()} CPU", "implementer 0x41", "part 0xd40"],
        ),
        ("", [f"{platform.machine()} CPU"]),
    ],
)
def test_the_processor_is_told_as_far_as_it_is_known(tmp_path: Path, text: str, told: list[str]) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert processor(tmp_path / "cpuinfo") == told
    assert processor(tmp_path / "none") == [f"{platform.machine()} CPU"]


LAUNCH = {"tile_warps": "512:1", "fp_fusion": False}


class Rocket:
    """A foreign op whose `launch` is something else."""

    def launch(self) -> None: ...


def test_only_a_mapping_is_a_launch_configuration() -> None:
    assert launch_of(DistributedGRPOLossOp(launch=LAUNCH)) == LAUNCH
    assert launch_of(DistributedGRPOLossOp()) == launch_of(Rocket()) == launch_of(print) == {}
    assert "op_launch" not in environment(torch.device("cpu"), {})


def reported(folder: Path, launch: dict[str, object]) -> tuple[Report, GRPOLossContract]:
    """The report of a run whose ranks said how their op launches its kernels."""
    plan = make_plan(
        RunConfig(tp=2, batch=("seed",), controls="off"), device="cpu", available_ranks=None, faults=()
    )
    rundir = RunDir.create(folder)
    (rundir.path / ENVIRONMENT).write_text(json.dumps(environment(torch.device("cpu"), launch)))
    report = make_report(plan, {}, LaunchOutcome(OutcomeKind.FINISHED, 1.0), rundir, (), 1.0)
    return report, plan.batches["seed"].contract


def test_the_fingerprint_of_a_report_holds_the_launch_of_an_op_that_has_one(tmp_path: Path) -> None:
    native, contract = reported(tmp_path / "a", {})
    tuned, _ = reported(tmp_path / "b", LAUNCH)
    assert native.numeric_fingerprint == contract.numeric_fingerprint()
    assert tuned.numeric_fingerprint == contract.numeric_fingerprint(LAUNCH) != native.numeric_fingerprint
    assert tuned.environment["op_launch"] == LAUNCH
    assert "op_launch" not in native.environment
