"""Questions to a reducer that works on rows of float32 terms: which terms are added to each other first.

Large values absorb small ones unless those were summed first (FPRev, USENIX ATC 2025). `absorption` needs
positive terms only; `opposite` needs terms of both signs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.revealing.sum_trees import Ask, Count, NotRevealedError, Triple

Rows = Callable[[Tensor], Tensor]
"""[R, n] terms to [R] sums."""
PRECISION = 24
"""Binary digits of a float32: half a unit in the last place of 1 is 2^-24."""
HUGE = 2.0**40
"""Absorbs any count of units below 2^16 of them."""


def absorption(reduce: Rows, count: int) -> Ask:
    """Which two of three positive terms meet first: 1 at i, a small number at j and k, 0 elsewhere.

    The sum is more than that of the 1 alone only when j and k were added to each other before either met i.
    """
    one = float(_finite(reduce(torch.eye(count)[:1]))[0])
    if one <= 0:
        raise NotRevealedError("a term of 1 does not come through as a positive sum")
    # Below half a unit in the last place of `one`, so that it is absorbed; two of them, summed first, are above.
    small = 0.75 * 2.0 ** (math.floor(math.log2(one)) - PRECISION) / one
    if count > 1:
        _check_resolution(reduce, count, one, small)

    def ask(triples: Sequence[Triple]) -> Sequence[bool]:
        terms = torch.zeros(len(triples), count)
        for row, (i, j, k) in enumerate(triples):
            terms[row, i], terms[row, j], terms[row, k] = 1.0, small, small
        return (_finite(reduce(terms)) > one).tolist()

    return ask


def _check_resolution(reduce: Rows, count: int, one: float, small: float) -> None:
    """Beside a term of 1, a small one has to vanish and twice as much has to show, wherever they are.

    An answer that never shows anything would fit a tree, and be none.
    """
    eye = torch.eye(count)
    beside = small * eye.roll(1, 1)
    sums = _finite(reduce(torch.cat((eye + beside, eye + 2 * beside))))
    if not bool((sums[count:] > one).all()):
        raise NotRevealedError(
            "a unit in the last place of the sum does not show in what is computed from it (an exponential or a "
            "logarithm of hardware accuracy, or a coarser type)"
        )
    if not bool((sums[:count] == one).all()):
        raise NotRevealedError(
            "half a unit in the last place is not rounded away: fits no tree of float32 additions (a wider "
            "accumulator or a compensated sum)"
        )


def opposite(reduce: Rows, count: int, unit: float = 1.0) -> Count:
    """The size of the smallest subtree of two terms: huge at i, its opposite at j, a unit elsewhere.

    Units summed before the two meet are absorbed; those added afterwards are what is left.
    """

    def ask(pairs: Sequence[tuple[int, int]]) -> Sequence[int]:
        terms = torch.full((len(pairs), count), unit)
        for row, (i, j) in enumerate(pairs):
            terms[row, i], terms[row, j] = HUGE * unit, -HUGE * unit
        return [count - round(value / unit) for value in _finite(reduce(terms)).tolist()]

    return ask


def _finite(sums: Tensor) -> Tensor:
    if not bool(sums.isfinite().all()):
        raise NotRevealedError("the probes' large terms do not come through as finite sums")
    return sums
