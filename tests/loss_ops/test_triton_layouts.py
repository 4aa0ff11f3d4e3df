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

from loss_ops.triton_held_launch import RINGS, gluon_known, held_constants
from loss_ops.triton_launch import TILE_WARPS, block_of, tile_options
from loss_ops.triton_tiles import row_states_kernel

TYPES = {"actions_ptr": "*i64", "active_ptr": "*i1", "out_ptr": "*fp32", "inverse_temperature": "fp32"}


def compiled(dtype: str, tile: int, *, aligned: bool) -> Any:
    """The kernel that sums tiles."""
    block = block_of(tile)
    constants: dict[str, Any] = {
        "TILE": tile, "BLOCK": block, "ALIGNED": aligned, "TEMPERED": True, "MERGED": True,
    }  # fmt: skip
    signature = {}
    for name in row_states_kernel.arg_names:
        logits = f"*{dtype}" if name in ("policy_ptr", "reference_ptr") else "i32"
        signature[name] = "constexpr" if name in constants else TYPES.get(name, logits)
    source = ASTSource(row_states_kernel, signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=tile_options(block))


def reductions(dtype: str, tile: int, *, aligned: bool) -> list[str]:
    """The layouts of everything that is reduced."""
    text = compiled(dtype, tile, aligned=aligned).asm["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", text, flags=re.MULTILINE))
    used = re.findall(rf"\}}\) : \(tensor<{block_of(tile)}xf32, (#\w+)>\) -> f32", text)
    return [layouts[each] for each in used]


@pytest.mark.parametrize(("dtype", "tile"), [("fp16", 2048), ("fp32", 1000), ("bf16", 8192)])
def test_alignment_does_not_reach_the_sum(dtype: str, tile: int) -> None:
    aligned, unaligned = (reductions(dtype, tile, aligned=each) for each in (True, False))
    assert aligned
    assert set(aligned) == set(unaligned)
    assert len(set(aligned)) == 1


def addition_trees(ptx: str) -> set[str]:
    """How what a thread adds is put together, wherever it is handed to another thread of the warp."""
    defined = {}
    for line in ptx.splitlines():
        found = re.match(r"\s*(?:@%p\d+ )?(\S+)\s+(%\w+), (.*);", line)
        if found:
            defined[found[2]] = (found[1], re.findall(r"%\w+", found[3]))

    def tree(register: str) -> str:
        operation, operands = defined.get(register, ("", []))
        if operation.startswith("add") and operation.endswith("f32"):
            return f"({tree(operands[0])}+{tree(operands[1])})"
        return tree(operands[0]) if operation == "mov.b32" and operands else "x"

    sent = re.findall(r"shfl\.sync\.bfly\.b32\s+%r\d+(?:\|%p\d+)?, (%\w+),", ptx)
    return {found for found in map(tree, sent) if found.count("x") > 2}


@pytest.mark.skipif(not gluon_known(), reason="needs a Triton whose Gluon is known")
@pytest.mark.parametrize(("dtype", "tile"), [("fp16", 2048), ("bf16", 8192)])
def test_held_chunks_are_summed_by_the_trees_of_tiles(dtype: str, tile: int) -> None:
    from triton.experimental.gluon._runtime import GluonASTSource

    from loss_ops.triton_held_row import held_row_kernel

    values = (*held_constants(tile), True, True, True, "k3")
    constants = dict(zip(held_row_kernel.arg_names[-len(values) :], values, strict=True))
    logits, floats = ("policy_ptr", "reference_ptr", "gradient_ptr"), ("low", "high", "beta", "scale")
    signature = {}
    for name in held_row_kernel.arg_names:
        plain = "*fp32" if name.endswith("_ptr") else "fp32" if name in floats else "i32"
        kind = f"*{dtype}" if name in logits else (TYPES | {"active_ptr": "*u8"}).get(name, plain)
        signature[name] = "constexpr" if name in constants else kind
    source = GluonASTSource(held_row_kernel, signature, constexprs=constants)
    held = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=RINGS[tile].options)
    expected = addition_trees(compiled(dtype, tile, aligned=True).asm["ptx"])
    assert expected
    assert addition_trees(held.asm["ptx"]) == expected


def test_every_tile_width_has_its_warps() -> None:
    assert [tile_options(block_of(width))["num_warps"] for width, _ in TILE_WARPS] == [n for _, n in TILE_WARPS]
