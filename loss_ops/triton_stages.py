"""The stages with Triton kernels, and the program that runs them in few launches when none is replaced."""

from __future__ import annotations

from dataclasses import fields

from loss_ops import triton_steps
from loss_ops.gather import Program
from loss_ops.identity_cache import IdentityCache
from loss_ops.inputs import LossInputs
from loss_ops.loss_program import LossState, Observer, staged_program
from loss_ops.stages import Stages
from loss_ops.triton_gradient import logits_gradient
from loss_ops.triton_program import Write, triton_program
from loss_ops.triton_tiles import tile_stats


def program(
    inputs: LossInputs,
    stages: Stages,
    *,
    grad_scale: float = 1.0,
    observe: Observer | None = None,
    write: Write = "backward",
    wait: bool = True,
) -> Program[LossState]:
    """The lean program for the stages as they are here; stage by stage where one was replaced."""
    if stages is TRITON_STAGES or _known.get((stages,), _unchanged):
        return triton_program(inputs, grad_scale=grad_scale, observe=observe, write=write, wait=wait)
    return staged_program(inputs, stages, grad_scale=grad_scale, observe=observe)


TRITON_STAGES = Stages(
    tile_stats=tile_stats,
    merge=triton_steps.merge,
    advantages=triton_steps.all_advantages,
    token_terms=triton_steps.token_terms,
    token_sum=triton_steps.token_sum,
    scalars=triton_steps.scalars,
    logits_gradient=logits_gradient,
    program=program,
)
_known: IdentityCache[bool] = IdentityCache()
_NAMES = tuple(field.name for field in fields(Stages) if field.name != "program")


def _unchanged(stages: Stages) -> bool:
    return all(getattr(stages, name) is getattr(TRITON_STAGES, name) for name in _NAMES)
