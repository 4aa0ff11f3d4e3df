"""A foreign op that hangs in collectives of its own, on real ranks: the one that does not come is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TIMEOUT = 3


def test_the_rank_that_is_in_no_collective_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(
                sys.executable,
                str(HERE / "faulty_cli.py"),
                "--forked",
                "--json",
                "--op",
                "hanging_op:one_rank_sleeps",
            ),
            *("--tp", "2", "--batch", "seed", "--no-controls", "--timeout", str(TIMEOUT), "--out", "out"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[2]), str(HERE)])},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    culprit = json.loads(done.stdout)["culprit"]
    assert culprit.startswith(
        "rank 1 stopped answering in forward of case 'seed/s0/2x1', in no collective, "
        "while rank 0 waits in all_reduce at one_rank_sleeps (hanging_op.py:"
    )
    assert "; it was at stuck_here (hanging_op.py:" in culprit
    assert "run once more with every collective checked, it hangs at the same place" in culprit
