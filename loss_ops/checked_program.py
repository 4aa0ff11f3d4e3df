"""The loss program inside its agreements: preflight before, the error codes of all sequences after."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from grpo_contract import InputError, Problem, error_from
from loss_ops.gather import Program
from loss_ops.inputs import LossInputs
from loss_ops.loss_call import SHOWN, LossCall
from loss_ops.loss_program import LossState, Observer, loss_program
from loss_ops.preflight import preflight
from loss_ops.sequence_totals import CODES, SequenceTotals
from loss_ops.stages import Stages

Validate = Literal["full", "off"]


@dataclass(frozen=True)
class Checks:
    """`validate="full"` reads values and so waits for the device; `preflight` exchanges records first.

    `problems` were found before the call took its form: they are raised with its own, on every rank.
    """

    validate: Validate = "full"
    preflight: bool = True
    backend: str = "native"
    problems: tuple[Problem, ...] = ()


def checked_program(
    call: LossCall,
    stages: Stages,
    checks: Checks,
    *,
    grad_scale: float = 1.0,
    observe: Observer | None = None,
) -> Program[tuple[LossInputs, LossState]]:
    """Validate, agree, compute, agree again. Every rank raises the same error, or none does.

    Raises ContractError or InputError for what a rank found in its own call, PreflightError where ranks
    disagree, InputError naming [sequence, token] for a value that overflowed or was not finite.
    """
    yield from agreement(call, checks, grad_scale)
    inputs = call.inputs()
    state = yield from loss_program(inputs, stages, grad_scale=grad_scale, observe=observe)
    if checks.validate == "full":
        _check_totals(state.totals_B)
    return inputs, state


def agreement(call: LossCall, checks: Checks, grad_scale: float = 1.0) -> Program[None]:
    """Validate this rank's call and, where asked for, compare it with all others; raises as `checked_program`."""
    problems = [*checks.problems, *call.structure_problems(), *_option_problems(checks, grad_scale)]
    if checks.validate == "full" and not problems:
        problems = call.value_problems()
    if checks.preflight:
        yield from preflight(call, checks.backend, problems, grad_scale, _group_sizes(call), checks.validate)
    elif problems:
        raise error_from(problems)


def _group_sizes(call: LossCall) -> tuple[int, int]:
    """Who really takes part: a rank whose sharding does not fit its groups must still reach the others."""
    tp, dp = call.group_sizes
    return tp or call.sharding.tp_degree, dp or call.sharding.dp_degree


def _option_problems(checks: Checks, grad_scale: float) -> list[Problem]:
    found = []
    if checks.validate not in get_args(Validate):
        expected = " or ".join(get_args(Validate))
        found.append(Problem("input.validate", "validate", expected, repr(checks.validate)))
    if not math.isfinite(grad_scale):
        found.append(Problem("input.grad_scale", "grad_scale", "a finite number", str(grad_scale)))
    return found


def _check_totals(totals_B: SequenceTotals) -> None:
    check_active(totals_B.active_tokens)
    if bool((totals_B.code != 0).any()):
        raise InputError(_non_finite(totals_B))


def check_active(active_tokens_B: Tensor) -> None:
    """Raise InputError when no sequence of the whole batch has an active token."""
    if not bool((active_tokens_B > 0).any()):
        got = "no active tokens"
        raise InputError(Problem("input.no_active_tokens", "completion_mask", "an active token in the batch", got))


def _non_finite(totals_B: SequenceTotals) -> list[Problem]:
    sequences = totals_B.code.nonzero().flatten().tolist()
    return [
        Problem(
            "input.non_finite",
            f"{CODES[int(totals_B.code[s])]} at [{s}, {int(totals_B.token[s])}]",
            "a finite float32 value",
            "a non-finite one",
        )
        for s in sequences[:SHOWN]
    ]
