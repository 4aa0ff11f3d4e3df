"""The child of `apart`: does one piece of work on the user's op, and writes the answer in one step."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from grpo_contract import GRPOVerifyError
from harness.files.rundir import RunDir, write_atomic
from harness.inspection.apart import ANSWER, WORK
from harness.launching.launch_request import append_user_path
from harness.launching.stacks import install_stack_dump, is_library
from harness.launching.status import Phase, StatusWriter
from harness.provenance.foreign_folders import HOME, PACKAGES
from harness.system.error_text import message_of, named
from harness.system.full_disk import is_full
from harness.system.guard import has_launcher, install_parent_guard
from harness.worker import leave

CALLS_OPS = tuple(str(HOME / "harness" / name) for name in ("ranks/candidate.py", "own_ops/ops.py"))
"""The files that import and call the user's op: an error that came through one of them is the op's."""
_OWN = tuple(str(HOME / name) + os.sep for name in PACKAGES)


def main(folder: str) -> int:
    """Do the work in the run directory `folder`."""
    if sys.platform != "linux" and has_launcher():
        install_parent_guard()  # on Linux the kernel already keeps the guard that this process was started by
    rundir, own = RunDir.open(Path(folder)), os.getpid()
    status = StatusWriter(rundir, 0)
    install_stack_dump(rundir, 0)
    append_user_path()
    answer = _answer(json.loads((rundir.path / WORK).read_text(encoding="utf-8")), status)
    if os.getpid() != own:
        return 1  # the op has forked: only one of the two answers
    write_atomic(rundir.path / ANSWER, json.dumps(answer))
    return 0


def _answer(work: dict[str, Any], status: StatusWriter) -> dict[str, Any]:
    try:
        from harness.inspection import op_work  # brings torch

        status.update(phase=Phase.READY)
        text, code = getattr(op_work, work["function"])(**work["arguments"], tick=status.tick)
    except SystemExit as stop:
        message = f"the op {work['op']} ended the process (exit status {_status_of(stop)})"
        return {"kind": "op", "message": message, "traceback": ""}
    except BaseException as error:
        return told(error, work["op"])
    return {"kind": "answer", "text": text, "status": code}


def told(error: BaseException, op: str) -> dict[str, Any]:
    """`error` for the parent: one of the request as it is, one that came out of the op as the op's."""
    if isinstance(error, GRPOVerifyError):
        problems = [each.to_dict() for each in error.problems]
        whole = {"code": error.code, "title": error.title, "message": str(error)}
        return {"kind": "refusal", "problems": problems, **whole}
    if isinstance(error, OSError) and is_full(error):
        return {"kind": "system", "errno": error.errno, "message": error.strerror, "file": error.filename}
    text = "".join(traceback.format_exception(error))
    frames = traceback.extract_tb(error.__traceback__)
    called = any(frame.filename in CALLS_OPS for frame in frames)
    if isinstance(error, Exception) and not (":" in op and called):
        return {"kind": "error", "name": type(error).__name__, "message": message_of(error), "traceback": text}
    own = [each for each in frames if not each.filename.startswith(_OWN) and not is_library(each.filename)]
    last = (own or list(frames))[-1]
    line, place = named(error), f"{Path(last.filename).name}:{last.lineno}"
    return {"kind": "op", "message": f"the op {op} raised {line}, in {last.name} ({place})", "traceback": text}


def _status_of(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    return stop.code if isinstance(stop.code, int) else 1


if __name__ == "__main__":
    leave(main(sys.argv[1]))
