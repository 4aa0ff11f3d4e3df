"""Work on the user's op for `reveal` and `snapshot`, in one child process: what an op does there ends no command.

An answer counts only once the child has written it whole, as JSON. The parent never imports torch, nor the op.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from grpo_contract import GRPOVerifyError, Problem
from harness.files.rundir import RunDir, read_text, write_atomic
from harness.launching.launch_request import LaunchRequest, worker_environment
from harness.launching.stacks import request_stacks
from harness.launching.status import Phase, RankStatus, read_status
from harness.system import guard
from harness.system.processes import Family

POLL_SECONDS = 0.03
WORK, ANSWER = "work.json", "answer.json"
Answer = tuple[str, int]


class OpFailure(RuntimeError):
    """The op left its process without an answer: it raised, ended the process, or never came back."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class ChildError(RuntimeError):
    """An error of ours in the child, as text: `kind` is its class."""

    def __init__(self, kind: str, message: str, traceback: str) -> None:
        super().__init__(message)
        self.kind, self.traceback = kind, traceback


class ChildRefusal(GRPOVerifyError):
    """A refusal that the child came to, with its own code, title and problems."""

    def __init__(self, code: str, title: str, problems: list[Problem], message: str) -> None:
        self.code, self.title = code, title
        super().__init__(problems or message)


def work_apart(function: str, *, op: str, timeout: float, **arguments: Any) -> Answer:
    """What `function` of harness.inspection.op_work answers to `arguments` (plain data), from a child process.

    Raises what it raised: our errors as they are, OpFailure for one of `op`, or when there is no sign of progress
    for `timeout` seconds, or no answer at all.
    """
    rundir = RunDir.create()
    try:
        work = {"function": function, "arguments": arguments, "op": op}
        write_atomic(rundir.path / WORK, json.dumps(work))
        request = LaunchRequest(1, rundir, timeout=timeout, module="harness.inspection.op_process")
        code = _followed(request, op)
        answer = read_text(rundir.path / ANSWER)
    finally:
        shutil.rmtree(rundir.path, ignore_errors=True)
    if answer is None:
        raise OpFailure(f"the op {op} ended the process ({_ending(code)})")
    return _answered(json.loads(answer))


def _answered(found: Mapping[str, Any]) -> Answer:
    match found["kind"]:
        case "answer":
            return found["text"], found["status"]
        case "op":
            raise OpFailure(found["message"], found["traceback"])
        case "refusal":
            problems = [Problem(**each) for each in found["problems"]]
            raise ChildRefusal(found["code"], found["title"], problems, found["message"])
        case "system":
            raise OSError(found["errno"], found["message"], found["file"])
    raise ChildError(found["name"], found["message"], found["traceback"])


def _followed(request: LaunchRequest, op: str) -> int | None:
    """The child's exit status; its whole family is ended, however this is left."""
    mark = secrets.token_hex(8)
    out = _diagnostics()
    process = subprocess.Popen(
        [request.python, "-I", "-S", guard.__file__, str(os.getpid()), request.python, "-m", *request.worker],
        env=worker_environment(request, mark), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        start_new_session=True,
    )  # fmt: skip
    try:
        changed, seen = time.monotonic(), None
        while process.poll() is None and not (request.rundir.path / ANSWER).exists():
            status = read_status(request.rundir, 0)
            if status != seen:
                changed, seen = time.monotonic(), status
            if time.monotonic() - changed > _allowed(request, seen):
                raise OpFailure(_silence(request, op, seen))
            time.sleep(POLL_SECONDS)
    finally:
        Family(process.pid, mark).end(process.poll, 0.0, lambda: True)
    return process.poll()


def _allowed(request: LaunchRequest, status: RankStatus | None) -> float:
    is_starting = status is None or status.phase is Phase.START
    return max(request.timeout, request.start_timeout) if is_starting else request.timeout


def _silence(request: LaunchRequest, op: str, status: RankStatus | None) -> str:
    if status is None or status.phase is Phase.START:
        return f"the process of the op {op} did not get ready within {_allowed(request, status):g} seconds"
    places = request_stacks(request.rundir, {0: status.pid})
    at = f"; it was at {places[0].frame}" if 0 in places else ""
    return f"the op {op} gave no answer for {request.timeout:g} seconds{at}"


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _diagnostics() -> int:
    """Where the child's own output goes: to stderr, so that stdout holds the answer alone."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    sys.stderr.flush()
    return 2
