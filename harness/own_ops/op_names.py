"""Names of ops, judged before anything is launched. Never imports torch, nor the user's code."""

from __future__ import annotations

from grpo_contract import Problem
from harness.own_ops.op_lookup import op_problem
from harness.planning.planned_cases import FAULTED_OP
from harness.settings.config_problems import suggestion
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig
from loss_ops import kernel_registry
from loss_ops.registry import LOSS_OP


def check_op(config: RunConfig, *, is_here: bool = True) -> None:
    """Refuse an op or a backend that cannot exist; what only an import can tell is left to the ranks.

    What an op imports is looked for where the ranks run on this machine (`is_here`).
    Raises RequestError.
    """
    backends = [row["backend"] for row in kernel_registry.describe() if row["op"] == LOSS_OP]
    own = [FAULTED_OP, *backends]
    problems = []
    if ":" not in config.op and config.op not in own:
        expected = f"one of {', '.join(own)}, or package.module:attribute{suggestion(config.op, own)}"
        problems.append(Problem("request.op", config.where("op"), expected, config.op))
    if ":" in config.op and (problem := op_problem(config.op, config.where("op"), is_here=is_here)):
        problems.append(problem)
    if config.backend is not None and config.backend not in backends:
        expected = f"one of {', '.join(backends)}{suggestion(config.backend, backends)}"
        problems.append(Problem("request.backend", config.where("backend"), expected, config.backend))
    if problems:
        raise RequestError(problems)


def check_backend(config: RunConfig, device: str) -> None:
    """Refuse a backend that was asked for by name and that cannot run on `device` of this machine.

    Raises RequestError.
    """
    name, where = (config.backend, "backend") if config.backend else (config.op, "op")
    is_unused = ":" in config.op and config.controls == "off"  # a foreign op brings its own
    if ":" in name or name == FAULTED_OP or is_unused:
        return
    if refusal := kernel_registry.refusal(LOSS_OP, name, device=device):
        expected = f"a backend that can run on {device} here"
        raise RequestError(Problem(f"request.{where}", config.where(where), expected, f"{name}: {refusal}"))
