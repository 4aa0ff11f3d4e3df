"""exp without its care for denormal results, and what tells whether a row can do without (Gluon functions).

Where no result is denormal the bits are those of `tl.exp`: the same product, the same instruction. What is left
out, two multiplies and a comparison an element, is what else keeps the compiler from having many in flight.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from loss_ops.triton_math import finite_reference

LOG2E = gl.constexpr(1.4426950408889634)
# exp2 of this is the smallest normal float32.
LEAST_EXPONENT = gl.constexpr(-126.0)
# Products above this are not rounded to zero, whose sign would depend on how they are formed.
SMALLEST_PRODUCT = gl.constexpr(2.0**-140)


@gluon.jit
def normal_exp(exponent):
    """exp(exponent) where that is a normal number, or exponent is -inf or NaN."""
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [exponent * LOG2E], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def lowest_exponent(least, largest, inverse_temperature, TEMPERED: gl.constexpr):
    """(least - largest) / temperature, rounded as every element's is: no element's exponent is lower."""
    exponent = least - finite_reference(largest)
    if TEMPERED:
        exponent = exponent * inverse_temperature
    return exponent


@gluon.jit
def is_normal(exponent):
    """Whether exp of everything from `exponent` on is a normal number; False for NaN."""
    return exponent * LOG2E >= LEAST_EXPONENT


@gluon.jit
def normal_gradient(logits, coefficient, scaled_max, log_sum, inverse_temperature, TEMPERED: gl.constexpr):
    """`gradient_of_tile` beside the target, where probabilities are normal and no product rounds to zero."""
    scaled = logits
    if TEMPERED:
        scaled = scaled * inverse_temperature
    return normal_exp((scaled - scaled_max) - log_sum) * (0.0 - coefficient)


@gluon.jit
def smaller(left, right):
    """Elementwise minimum of half-precision blocks, two elements an instruction. Exact: no order enters."""
    if left.dtype == gl.float16:
        return gl.inline_asm_elementwise(
            "min.f16x2 $0, $1, $2;", "=r,r,r", [left, right], dtype=left.dtype, is_pure=True, pack=2
        )
    else:  # noqa: RET505  # one of the two is compiled
        return gl.inline_asm_elementwise(
            "min.bf16x2 $0, $1, $2;", "=r,r,r", [left, right], dtype=left.dtype, is_pure=True, pack=2
        )


@gluon.jit
def folded(raw, FOLDS: gl.constexpr):
    """[G, W] to [G, W / 2**FOLDS]: the minimum of each thread's vectors, without a word to another thread."""
    low = raw
    for _ in gl.static_range(FOLDS):
        left, right = gl.split(gl.permute(gl.reshape(low, [low.shape[0], 2, low.shape[1] // 2]), [0, 2, 1]))
        low = smaller(left, right)
    return low
