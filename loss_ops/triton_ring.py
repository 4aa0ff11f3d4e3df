"""A ring of slots in shared memory that chunks of logits are loaded into ahead of their use (Gluon functions).

A program's loads follow one another in the order in which slots come free: of each active row the reference's
chunks, the policy's, and again those of the policy's that are not kept, the last of them first.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

# Renamed between releases of Triton.
copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.jit
def following(slot, SLOTS: gl.constexpr):
    """The slot after `slot`."""
    slot += 1
    if slot == SLOTS:
        slot = 0
    return slot


@gluon.jit
def next_active(active_ptr, row, flag, rows):
    """The next active row of this program from `row` on, and the flag after it. `flag` is that of `row`.

    The flag after it was asked for a row earlier: the load is not waited for.
    """
    step = gl.num_programs(0)
    while (row < rows) & (flag == 0):
        row += step
        flag = gl.load(active_ptr + row, mask=row < rows, other=0)
    return row, gl.load(active_ptr + row + step, mask=row + step < rows, other=0)


@gluon.jit
def copy_chunk(slot, row_ptr, first, offsets, EVICTION: gl.constexpr):
    """Begin to copy columns first + offsets, in vectors of 16 bytes."""
    copy_to_shared(slot, gl.multiple_of(row_ptr + first, 16) + offsets, eviction_policy=EVICTION)


@gluon.jit
def load_next(
    ring, policy_ptr, reference_ptr, active_ptr, policy_stride, reference_stride, offsets, rows,
    row, item, slot, flag, row_ptr, first,
    SLOTS: gl.constexpr, REFERENCE_CHUNKS: gl.constexpr, CHUNKS: gl.constexpr, AGAIN: gl.constexpr,
    WIDTH: gl.constexpr,
):  # fmt: skip
    """Begin the next load, if there is one, as a group of its own; the six from `row` on, after it.

    What is wanted again soon, the policy's first reading, is what the cache should keep.
    """
    if row < rows:
        if (item >= REFERENCE_CHUNKS) & (item < REFERENCE_CHUNKS + CHUNKS):
            copy_chunk(ring.index(slot), row_ptr, first, offsets, "")
        else:
            copy_chunk(ring.index(slot), row_ptr, first, offsets, "evict_first")
        slot = following(slot, SLOTS)
        if item >= REFERENCE_CHUNKS + CHUNKS:
            first -= WIDTH
        else:
            first += WIDTH
        item += 1
        if item == REFERENCE_CHUNKS:
            row_ptr = policy_ptr + row.to(gl.int64) * policy_stride
            first = 0
        if item == REFERENCE_CHUNKS + CHUNKS:
            first = (AGAIN - 1) * WIDTH
        if item == REFERENCE_CHUNKS + CHUNKS + AGAIN:
            item = 0
            first = 0
            row, flag = next_active(active_ptr, row + gl.num_programs(0), flag, rows)
            if REFERENCE_CHUNKS > 0:
                row_ptr = reference_ptr + row.to(gl.int64) * reference_stride
            else:
                row_ptr = policy_ptr + row.to(gl.int64) * policy_stride
    async_copy.commit_group()
    return row, item, slot, flag, row_ptr, first
