"""One thread for every test module: they run beside each other. The bits do not depend on it, as a test shows."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    torch = sys.modules.get("torch")  # modules that need no torch stay without it
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
