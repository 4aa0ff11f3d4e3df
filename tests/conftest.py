"""One thread for every test module: they run beside each other. The bits do not depend on it, as a test shows."""

import signal
import sys
from collections.abc import Iterator

import pytest

# Under nohup, or in the background of a script, signals are ignored, and so would they be by what tests start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


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
