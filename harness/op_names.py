"""Names of ops, judged before anything is launched. Never imports torch, nor the user's code."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os

from grpo_contract import Problem
from harness.config_problems import suggestion
from harness.planned_cases import FAULTED_OP
from harness.run_config import RequestError, RunConfig
from loss_ops import kernel_registry
from loss_ops.registry import LOSS_OP


def check_op(config: RunConfig) -> None:
    """Refuse an op or a backend that cannot exist; what only an import can tell is left to the ranks.

    Raises RequestError.
    """
    backends = [row["backend"] for row in kernel_registry.describe() if row["op"] == LOSS_OP]
    own = [FAULTED_OP, *backends]
    problems = []
    if ":" not in config.op and config.op not in own:
        expected = f"one of {', '.join(own)}, or package.module:attribute{suggestion(config.op, own)}"
        problems.append(Problem("request.op", config.where("op"), expected, config.op))
    if ":" in config.op and not _is_there(config.op.partition(":")[0].partition(".")[0]):
        expected = "package.module:attribute of an installed package or of one in this folder"
        problems.append(Problem("request.op", config.where("op"), expected, config.op))
    if config.backend is not None and config.backend not in backends:
        expected = f"one of {', '.join(backends)}{suggestion(config.backend, backends)}"
        problems.append(Problem("request.backend", config.where("backend"), expected, config.backend))
    if problems:
        raise RequestError(problems)


def _is_there(package: str) -> bool:
    # A rank has another __main__ than this process.
    if not package.isidentifier() or package == "__main__":
        return False
    if importlib.util.find_spec(package) is not None:
        return True
    # Ranks see the user's folder last on their import path.
    return importlib.machinery.PathFinder.find_spec(package, [os.getcwd()]) is not None
