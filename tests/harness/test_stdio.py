from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import harness.stdio

ROOT = Path(harness.stdio.__file__).resolve().parents[1]
SCRIPT = """
import os, signal, sys
from harness.stdio import write
os.set_blocking(1, sys.argv[1] == "blocks")
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.3)
write(sys.stdout, "x" * 300_000 + "end")
"""


@pytest.mark.parametrize("mode", ["blocks", "does not block"])
def test_a_signal_cuts_no_text_short_where_streams_are_unbuffered(mode: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, mode],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(1.0)  # nobody reads: it waits in a full pipe, and the signal finds it there
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, len(out), out[-3:]) == (0, 300_003, "end")
