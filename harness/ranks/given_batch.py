"""A batch as a caller gives it: live tensors, a built-in name or a capture file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from grpo_contract import InputError, Problem
from harness.inputs.capture_contract import capture_contract
from harness.inputs.capture_header import read_header
from harness.own_ops.ops import PLAIN, oddity
from harness.ranks.batches import built_in, captured
from harness.settings.batch_spec import BUILT_IN, contract_for
from harness.settings.run_config import RunConfig
from loss_ops.batch import GlobalBatch


def batch_of(batch: GlobalBatch | str | Path, seed: int = 0) -> GlobalBatch:
    """Live tensors as they are, the built-in batch of a name, or the batch of a capture file, on the CPU.

    Raises InputError for a name that is neither, for tensors without elements to compare, and for anything else.
    """
    if isinstance(batch, GlobalBatch):
        _check_plain(batch)
        return replace(batch, policy_logits=batch.policy_logits.detach())
    if not isinstance(batch, str | Path):
        expected, got = "a GlobalBatch, a built-in name or a capture file", repr(batch)
        raise InputError(Problem("input.batch", "batch", expected, got))
    settings = RunConfig()
    if str(batch) in BUILT_IN:
        spec = BUILT_IN[str(batch)]
        return built_in(spec, seed, contract_for(spec, settings))
    if Path(batch).suffix != ".safetensors":
        expected = f"one of {', '.join(BUILT_IN)}, or a file ending in .safetensors"
        raise InputError(Problem("input.batch", "batch", expected, str(batch)))
    contract, _ = capture_contract(read_header(Path(batch)), settings)
    return captured(Path(batch), contract)


def _check_plain(batch: GlobalBatch) -> None:
    """Raise one InputError for all tensors that are sparse, without values or complex."""
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    odd = {name: oddity(value) for name, value in tensors.items()}
    problems = [
        Problem("input.batch", f"batch.{name}", PLAIN, f"a tensor {why}") for name, why in odd.items() if why
    ]
    if problems:
        raise InputError(problems)
