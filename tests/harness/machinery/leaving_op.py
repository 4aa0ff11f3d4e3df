"""An op that ends its process: as it is imported or when it is called, as GRPO_TEST_LEAVE says."""

from __future__ import annotations

import os
import sys
from typing import Any

LEAVE = os.environ.get("GRPO_TEST_LEAVE")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def leave(moment: str) -> None:
    if f"{moment} exit" == LEAVE:
        sys.exit("bye")
    if f"{moment} _exit" == LEAVE:
        os._exit(0)
    if f"{moment} raise" == LEAVE:
        raise Unspeakable


leave("import")


def loss(*args: Any, **more: Any) -> Any:
    leave("call")
