"""What one rank found wrong while it computed alone becomes the error of all ranks, before they meet again."""

from __future__ import annotations

import json

import torch

from grpo_contract import GRPOVerifyError, Problem, error_from
from harness.workloads.ranks import Place, TrainingProgram
from loss_ops.gather import Gather


def agree(error: GRPOVerifyError | None, place: Place, device: torch.device) -> TrainingProgram[None]:
    """Raise, on every rank alike, when a rank brings an error. Gathers one number over DP when none does."""
    own = [] if error is None else [problem.to_dict() for problem in _problems(error)]
    data = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8).to(device)
    lengths = yield Gather("dp", torch.tensor([len(data)], device=device), (1,) * place.degree, "outcomes")
    sizes = tuple(int(length) for length in lengths)
    if max(sizes) == len(json.dumps([])):
        return
    texts = yield Gather("dp", data, sizes, "problems")
    found = [Problem(**fields) for text in texts for fields in json.loads(text.cpu().numpy().tobytes())]
    raise error_from(found)


def _problems(error: GRPOVerifyError) -> tuple[Problem, ...]:
    """What an error lists, or the error itself as one problem."""
    return error.problems or (Problem("input.training", "training", "no error", str(error)),)
