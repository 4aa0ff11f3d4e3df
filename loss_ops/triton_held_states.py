"""Tile states of chunks of several tiles: the arithmetic and the trees of `triton_tiles` (Gluon device functions).

A chunk is [tiles, columns]; as many warps as sum a tile elsewhere sum one here, in the same layout.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from loss_ops.triton_math import finite_reference, merge_state
from loss_ops.triton_ring import barrier

# Floats a tile in the scratch memory: maxima of policy and reference, then sums.
STATE = gl.constexpr(4)


@gluon.jit
def max_and_sum(max_a, sum_a, max_b, sum_b):
    """Join a maximum and, beside it, a sum of something else."""
    return gl.maximum(max_a, max_b), sum_a + sum_b


@gluon.jit
def exponents(chunk, largest, inverse_temperature, TEMPERED: gl.constexpr):
    """(logit - its tile's largest) / temperature."""
    exponent = chunk - gl.expand_dims(finite_reference(largest), 1)
    if TEMPERED:
        exponent = exponent * inverse_temperature
    return exponent


@gluon.jit
def sum_again(
    row_ptr, scratch_ptr, offsets, within, inverse_temperature,
    CHUNKS: gl.constexpr, TEMPERED: gl.constexpr,
):  # fmt: skip
    """Replace the sums of one row's tiles by sums of `exp` with denormal results and all."""
    GROUP: gl.constexpr = offsets.shape[0]
    TILE: gl.constexpr = offsets.shape[1]
    for chunk in range(CHUNKS):
        logits = gl.load(row_ptr + chunk * (GROUP * TILE) + offsets).to(gl.float32)
        at = scratch_ptr + (chunk * GROUP + within) * STATE
        exponent = exponents(logits, gl.load(at), inverse_temperature, TEMPERED)
        gl.store(at + 2, gl.sum(gl.exp(exponent), 1))


@gluon.jit
def join_tiles(
    scratch_ptr, states_ptr, rows, inverse_temperature,
    TILES: gl.constexpr, MODELS: gl.constexpr, PAIR: gl.constexpr,
):  # fmt: skip
    """Join the tiles of policy and reference side by side, in vocabulary order; states of the row to memory."""
    barrier()
    model = gl.arange(0, 2, layout=PAIR)
    real = model < MODELS
    row_max = gl.full([2], float("-inf"), gl.float32, PAIR)
    row_sum = gl.full([2], 0.0, gl.float32, PAIR)
    for tile in gl.static_range(TILES):
        at = scratch_ptr + tile * STATE + model
        largest = gl.load(at, mask=real, other=0.0)
        total = gl.load(at + 2, mask=real, other=1.0)
        row_max, row_sum = merge_state(row_max, row_sum, largest, total, inverse_temperature)
    gl.store(states_ptr + 3 * rows * model, row_max, mask=real)
    gl.store(states_ptr + 3 * rows * model + rows, row_sum, mask=real)
    barrier()
