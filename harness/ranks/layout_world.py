"""The world that a foreign op sees: the ranks of its layout, as if no others had been started.

One launch runs many layouts, and its ranks are more than most of them have. An op that asks torch.distributed or
the environment how many ranks there are, or which one it is, would get the same answer in every layout and at 1x1;
what it makes of that could not be seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from harness.ranks.candidate import Groups

Layout = tuple[int, int]
NAMES = ("WORLD_SIZE", "RANK")


class LayoutWorlds:
    """A group of the first n ranks for each number of ranks that a layout has, and of this rank alone."""

    def __init__(self, layouts: Iterable[Layout], rank: int, timeout: timedelta) -> None:
        """Every rank calls this with the same layouts. `timeout` is that of one collective."""
        self._rank = rank
        sizes = sorted({tp * dp for tp, dp in layouts} - {1})
        self._groups = {size: dist.new_group(list(range(size)), timeout=timeout) for size in sizes}
        self._groups[1] = dist.new_group([rank], timeout=timeout, use_local_synchronization=True)

    def added(self, layout: Layout, groups: Groups) -> Groups:
        """The groups of this rank in `layout`, with the world of that layout."""
        return replace(groups, world=partial(self.of, layout))

    @contextmanager
    def of(self, layout: Layout) -> Iterator[None]:
        """The default group and the environment variables of a job of this layout's ranks alone."""
        size = layout[0] * layout[1]
        held = {name: os.environ.get(name) for name in NAMES}
        before = dist.group.WORLD
        os.environ.update(zip(NAMES, map(str, (size, self._rank if size > 1 else 0)), strict=True))
        dist.group.WORLD = self._groups[size]
        try:
            yield
        finally:
            dist.group.WORLD = before
            for name, value in held.items():
                _restore(name, value)


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
