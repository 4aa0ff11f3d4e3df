"""What one rank found wrong while it computed alone becomes the error of all ranks, before they meet again."""

from __future__ import annotations

import json

import torch

from grpo_contract import GRPOVerifyError, Problem, error_from
from loss_ops.gather import Gather, Program


def agree(error: Exception | None, degree: int, device: torch.device) -> Program[None]:
    """Raise, on each of `degree` DP ranks alike, when a rank brings an error.

    Gathers one int64 a rank over DP, on `device`, and the problems as JSON bytes only where there is one. Raises
    the project's error that carries all ranks' problems; another exception is one problem, by its text. A rank
    alone raises what it brought.
    """
    if degree == 1:
        if error is not None:
            raise error
        return
    own = [] if error is None else [problem.to_dict() for problem in _problems(error)]
    data = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8).to(device)
    lengths = yield Gather("dp", torch.tensor([len(data)], device=device), (1,) * degree, "outcomes")
    sizes = tuple(int(length) for length in lengths)
    if max(sizes) == len(json.dumps([])):
        return
    texts = yield Gather("dp", data, sizes, "problems")
    found = [Problem(**fields) for text in texts for fields in json.loads(text.cpu().numpy().tobytes())]
    raise error_from(found) from error


def _problems(error: Exception) -> tuple[Problem, ...]:
    """What an error lists, or the error itself as one problem."""
    where, expected = "a rank's part of the batch", "no error"
    if isinstance(error, GRPOVerifyError):
        return error.problems or (Problem(f"{error.code}.part", where, expected, str(error)),)
    return (Problem("error.part", where, expected, f"{type(error).__name__}: {error}"),)
