"""A small cache keyed by the identity of frozen objects: a lookup costs no hashing of their fields."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class IdentityCache(Generic[T]):
    """Keeps the newest `kept` values, and the objects they belong to, so that an identity is never reused."""

    def __init__(self, kept: int = 64) -> None:
        self.kept = kept
        self._held: OrderedDict[tuple[int, ...], tuple[tuple[Any, ...], T]] = OrderedDict()

    def get(self, objects: tuple[Any, ...], make: Callable[..., T]) -> T:
        """The value of these very objects; `make(*objects)` builds it the first time."""
        key = tuple(map(id, objects))
        found = self._held.get(key)
        if found is not None:
            return found[1]
        value = make(*objects)
        self._held[key] = (objects, value)
        if len(self._held) > self.kept:
            self._held.popitem(last=False)
        return value
