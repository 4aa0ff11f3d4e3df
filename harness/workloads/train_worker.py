"""A rank of `grpo-verify train`. Imports neither renderers, nor rich, nor the command line; torch on demand."""

from __future__ import annotations

import gc
import sys

from harness.worker import leave, main


def train_body(rundir: object, rank: int, local_rank: int, status: object) -> None:
    """Run the plan of the run directory as this rank."""
    import torch

    from harness.files.rundir import RunDir
    from harness.launching.status import StatusWriter
    from harness.workloads.train_plan import TrainPlan
    from harness.workloads.train_rank import TrainRank

    assert isinstance(rundir, RunDir)
    assert isinstance(status, StatusWriter)
    gc.freeze()
    gc.enable()
    torch.set_num_threads(1)
    plan = TrainPlan.model_validate_json(rundir.plan.read_text())
    TrainRank(plan, rundir, rank, local_rank, status).run()


if __name__ == "__main__":
    leave(main(sys.argv[1:], train_body))
