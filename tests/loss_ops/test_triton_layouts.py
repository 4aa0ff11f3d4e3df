"""How the compiler spreads a tile over threads, and so the tree of its sum, must not follow from alignment.

Compiles for a device of compute capability 9.0 without one.
"""

import re
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from loss_ops.triton_launch import TILE_WARPS, block_of, tile_options
from loss_ops.triton_tiles import row_states_kernel

TYPES = {"actions_ptr": "*i64", "active_ptr": "*i1", "out_ptr": "*fp32", "inverse_temperature": "fp32"}


def reductions(dtype: str, tile: int, *, aligned: bool) -> list[str]:
    """The layouts of everything that is reduced."""
    block = block_of(tile)
    constants: dict[str, Any] = {
        "TILE": tile, "BLOCK": block, "ALIGNED": aligned, "TEMPERED": True, "MERGED": True,
    }  # fmt: skip
    signature = {}
    for name in row_states_kernel.arg_names:
        logits = f"*{dtype}" if name in ("policy_ptr", "reference_ptr") else "i32"
        signature[name] = "constexpr" if name in constants else TYPES.get(name, logits)
    source = ASTSource(row_states_kernel, signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=tile_options(block))
    text = compiled.asm["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", text, flags=re.MULTILINE))
    used = re.findall(rf"\}}\) : \(tensor<{block}xf32, (#\w+)>\) -> f32", text)
    return [layouts[each] for each in used]


@pytest.mark.parametrize(("dtype", "tile"), [("fp16", 2048), ("fp32", 1000), ("bf16", 8192)])
def test_alignment_does_not_reach_the_sum(dtype: str, tile: int) -> None:
    aligned, unaligned = (reductions(dtype, tile, aligned=each) for each in (True, False))
    assert aligned
    assert set(aligned) == set(unaligned)
    assert len(set(aligned)) == 1


def test_every_tile_width_has_its_warps() -> None:
    assert [tile_options(block_of(width))["num_warps"] for width, _ in TILE_WARPS] == [n for _, n in TILE_WARPS]
