"""What one rank found wrong while it computed alone becomes the error of all ranks, before they meet again."""

from __future__ import annotations

import json

import torch

from grpo_contract import GRPOVerifyError, Problem, error_from
from loss_ops.gather import Axis, Gather, Program

AXES: tuple[Axis, Axis] = ("tp", "dp")


def agree(error: Exception | None, degrees: tuple[int, int], device: torch.device) -> Program[None]:
    """Raise, on every rank of the (TP, DP) mesh alike, when a rank brings an error.

    Over TP, then over DP, gathers one int64 a rank, on `device`, and the problems as JSON bytes only where there
    is one. Raises the project's error with the problems of all ranks, each once; another exception is one problem,
    by its text. A rank alone raises what it brought.
    """
    if degrees == (1, 1):
        if error is not None:
            raise error
        return
    axes = [(axis, degree) for axis, degree in zip(AXES, degrees, strict=True) if degree > 1]
    own = () if error is None else _problems(error)
    wrong = len(own)
    for axis, degree in axes:
        counts = yield Gather(axis, torch.tensor([wrong], device=device), (1,) * degree, "outcomes")
        wrong = max(int(count) for count in counts)
    if not wrong:
        return
    for axis, degree in axes:  # every rank takes part, also where its own line has nothing to tell
        own = yield from _of_line(own, axis, degree, device)
    raise error_from(own) from error


def _of_line(
    own: tuple[Problem, ...], axis: Axis, degree: int, device: torch.device
) -> Program[tuple[Problem, ...]]:
    text = json.dumps([problem.to_dict() for problem in own]).encode()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    lengths = yield Gather(axis, torch.tensor([len(data)], device=device), (1,) * degree, "lengths")
    texts = yield Gather(axis, data, tuple(int(length) for length in lengths), "problems")
    found = [Problem(**fields) for each in texts for fields in json.loads(each.cpu().numpy().tobytes())]
    return tuple(dict.fromkeys(found))


def _problems(error: Exception) -> tuple[Problem, ...]:
    """What an error lists, or the error itself as one problem."""
    where, expected = "a rank's part of the batch", "no error"
    if isinstance(error, GRPOVerifyError):
        return error.problems or (Problem(f"{error.code}.part", where, expected, str(error)),)
    return (Problem("error.part", where, expected, f"{type(error).__name__}: {error}"),)
