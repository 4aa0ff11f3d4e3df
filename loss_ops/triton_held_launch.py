"""How the kernel that holds rows on the chip is launched, and when: a choice of speed, the bits are the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from loss_ops.inputs import LossInputs
from loss_ops.triton_kernel import launch
from loss_ops.triton_launch import interpreted, is_aligned, tile_options, unit_columns
from loss_ops.triton_plan import Plan
from loss_ops.triton_workspace import Workspace
from loss_ops.vocab_shard import VocabShard

WARPS = 8
CAPABILITY = (9, 0)
# Releases of Triton whose Gluon, which may change with any, the kernel was compiled with.
RELEASES = ((3, 6), (3, 9))
DTYPES = (torch.float16, torch.bfloat16)
TILES_A_ROW = 16


@dataclass(frozen=True)
class Ring:
    """Slots of `group` tiles, of which `held` keep the end of the policy's row; programs a multiprocessor."""

    group: int
    slots: int
    held: int
    programs: int

    @property
    def chunks(self) -> int:
        """Groups of tiles a row."""
        return TILES_A_ROW // self.group

    @property
    def options(self) -> dict[str, Any]:
        """Launch options: as many registers as let the programs share a multiprocessor."""
        registers = min(255, 65536 // (self.programs * WARPS * 32) // 8 * 8)
        return {"num_warps": WARPS, "num_stages": 1, "enable_fp_fusion": False, "maxnreg": registers}


# By tile width: the fastest of those measured. Other shapes are left to the other kernel until they are measured.
RINGS = {2048: Ring(group=4, slots=4, held=3, programs=3), 8192: Ring(group=2, slots=7, held=5, programs=1)}


def gluon_known() -> bool:
    """Whether this release of Triton is one that the kernel is written for."""
    major, minor = (int(part) for part in triton.__version__.split(".")[:2])
    return RELEASES[0] <= (major, minor) <= RELEASES[1]


@lru_cache(maxsize=16)
def multiprocessors(device: int) -> int:
    """How many a device has; 0 where the kernel does not run."""
    if interpreted() or not gluon_known() or torch.cuda.get_device_capability(device) != CAPABILITY:
        return 0
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def holds(policy: Tensor, reference: Tensor, out: Tensor, shard: VocabShard) -> bool:
    """Whether rows of these logits are held: half precision, aligned, and nothing but full tiles."""
    return (
        policy.is_cuda
        and policy.dtype in DTYPES
        and policy.dtype == reference.dtype == out.dtype
        and shard.tile_width in RINGS
        and shard.num_real_columns == policy.shape[1] == TILES_A_ROW * shard.tile_width
        and is_aligned(shard.tile_width, policy, reference, out)
        and multiprocessors(policy.get_device()) > 0
    )


def held_constants(tile_width: int) -> tuple[int, ...]:
    """The kernel's first constants, which follow from the tile's width."""
    ring, warps = RINGS[tile_width], tile_options(tile_width)["num_warps"]
    folds = (tile_width // (8 * 32 * warps)).bit_length() - 1
    return tile_width, warps, TILES_A_ROW, ring.group, ring.chunks, ring.slots, ring.held, folds


def launch_held_row(inputs: LossInputs, plan: Plan, space: Workspace, out_NV: Tensor, grad_scale: float) -> None:
    """As `launch_one_kernel`, for logits that `holds` accepts."""
    from loss_ops.triton_held_row import held_row_kernel

    policy = unit_columns(inputs.policy_logits_NV)
    reference = policy if inputs.ref_logits_NV is None else unit_columns(inputs.ref_logits_NV)
    objective, shard = plan.objective, plan.shard
    rows, columns = policy.shape
    ring = RINGS[shard.tile_width]
    programs = min(rows, multiprocessors(policy.get_device()) * ring.programs)
    launch(
        held_row_kernel,
        (programs, 1),
        (
            policy,
            reference,
            out_NV,
            inputs.action_ids_ST.contiguous(),
            inputs.active_ST.contiguous().view(torch.uint8),
            inputs.old_logps_ST.contiguous(),
            space.part("advantages"),
            space.part("weights"),
            space.part("states"),
            space.floats.new_empty(programs * TILES_A_ROW * 4),
        ),
        (
            policy.stride(0),
            reference.stride(0),
            out_NV.stride(0),
            rows,
            inputs.active_ST.shape[1],
            plan.first_sequence,
            columns,
            plan.inverse_temperature,
            1 - objective.clip_eps_low,
            1 + objective.clip_eps_high,
            objective.beta,
            grad_scale / objective.temperature,
        ),
        (
            *held_constants(shard.tile_width),
            plan.inverse_temperature != 1.0,
            inputs.ref_logits_NV is not None,
            *plan.penalty_constants,
        ),
        ring.options,
    )
