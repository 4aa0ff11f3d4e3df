"""Batches for tests: from case files, captures, built-in specs or a few lines of random numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_contract import GRPOLossContract
from harness.ranks.batches import built_in
from harness.settings.batch_spec import BUILT_IN, CONTROL, BatchSpec
from loss_ops.batch import GlobalBatch
from loss_ops.quantities import GRADIENT
from loss_ops.virtual_layout import VirtualOutcome, run_layout
from oracle.capture import Capture, read_capture
from oracle.cases import Case
from oracle.grpo import OracleResult, OracleSettings, grpo_oracle
from support.bits import differing

DATA = Path(__file__).parents[1] / "data"
SLICE = DATA / "smollm2-b4-t8.safetensors"
DEGREES = (1, 2, 3, 4, 8)


def case_contract(case: Case, **fields: Any) -> GRPOLossContract:
    """The contract of a case file, with the default tiles."""
    given = case.contract_fields() | fields
    sequences, length, columns = case.policy_logits.shape
    return GRPOLossContract.for_batch(
        num_sequences=sequences,
        padded_seq_len=length,
        vocab_size=given.pop("real_vocab_size"),
        padded_vocab_size=columns,
        **given,
    )


def case_batch(case: Case, **fields: Any) -> GlobalBatch:
    """The tensors of a case file under its contract."""
    tensors = [None if each is None else torch.from_numpy(each.copy()) for each in case.inputs()]
    return GlobalBatch(*tensors, case_contract(case, **fields))


def capture_batch(path: Path = SLICE, **fields: Any) -> GlobalBatch:
    """A capture, read without the harness."""
    capture = read_capture(path)
    policy, ref, ids, old, rewards, mask = (
        torch.from_numpy(array.copy()) for array in capture.inputs() if array is not None
    )
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[capture.dtypes["policy_logits"]]
    contract = capture_contract(capture, tuple(policy.shape), str(dtype).removeprefix("torch."), **fields)
    return GlobalBatch(policy.to(dtype), ref.to(dtype), ids, old, rewards, mask.bool(), contract)


def capture_contract(capture: Capture, shape: Sequence[int], dtype: str, **fields: Any) -> GRPOLossContract:
    """The contract that a capture's metadata asks for."""
    meta = capture.metadata
    stored = {
        "beta": float(meta["beta"]),
        "clip_eps": float(meta["clip_eps"]),
        "kl_estimator": meta["kl_estimator"],
    }
    return GRPOLossContract.for_batch(
        num_sequences=shape[0],
        padded_seq_len=shape[1],
        vocab_size=int(meta["real_vocab_size"]),
        padded_vocab_size=shape[2],
        group_boundaries=capture.group_boundaries(),
        dtype=dtype,
        **(stored | {"temperature": float(meta["temperature"])} | fields),
    )


def spec_contract(spec: BatchSpec, **fields: Any) -> GRPOLossContract:
    """The contract of a built-in batch."""
    return GRPOLossContract.for_batch(
        num_sequences=spec.num_sequences,
        padded_seq_len=spec.padded_seq_len,
        vocab_size=spec.real_vocab_size,
        padded_vocab_size=spec.padded_vocab_size,
        num_vocab_tiles=spec.num_vocab_tiles,
        group_boundaries=spec.group_boundaries,
        **fields,
    )


def drawn(spec: BatchSpec | str, seed: int = 0, **fields: Any) -> GlobalBatch:
    """A built-in batch by name or spec; `control` is the planted faults' own."""
    if isinstance(spec, str):
        spec = CONTROL if spec == CONTROL.name else BUILT_IN[spec]
    return built_in(spec, seed, spec_contract(spec, **fields))


def small_spec(**changes: Any) -> BatchSpec:
    """Six sequences of eight slots, 24 columns of which 21 are real, groups that straddle shards."""
    fields: dict[str, Any] = {
        "name": "small",
        "num_sequences": 6,
        "padded_seq_len": 8,
        "real_vocab_size": 21,
        "padded_vocab_size": 24,
        "num_vocab_tiles": 12,
        "group_boundaries": (0, 2, 6),
        "raggedness": "ragged",
    }
    return BatchSpec(**(fields | changes))


def small(seed: int = 0, **fields: Any) -> GlobalBatch:
    """The batch of `small_spec`: cheap, ragged, with garbage in every masked slot."""
    return drawn(small_spec(), seed, **fields)


def oracle_of(batch: GlobalBatch) -> OracleResult:
    """The float64 answer for a batch of any dtype."""
    objective, reduction = batch.contract.objective, batch.contract.reduction
    given = {
        "fixed_constant": reduction.fixed_constant,
        "alpha": reduction.alpha,
        "sequence_denominator": reduction.sequence_denominator,
    }
    settings = OracleSettings(
        group_boundaries=batch.contract.geometry.group_boundaries,
        **objective.model_dump(mode="json", exclude={"advantage"}),
        token_normalizer=reduction.token_normalizer,
        advantage=objective.advantage.kind,
        std_eps=objective.advantage.std_eps,
        std_eps_mode=objective.advantage.std_eps_mode,
        real_vocab_size=batch.contract.logprob.real_vocab_size,
        **{name: value for name, value in given.items() if value is not None},
    )
    return grpo_oracle(
        batch.policy_logits.float().numpy(),
        None if batch.ref_logits is None else batch.ref_logits.float().numpy(),
        batch.action_ids.numpy(),
        batch.old_logps.numpy(),
        batch.rewards.numpy(),
        batch.completion_mask.numpy(),
        settings,
    )


def with_contract(batch: GlobalBatch, **sections: Any) -> GlobalBatch:
    """The batch under a contract with other fields: `objective={"beta": 0.0}`."""
    content = batch.contract.model_dump()
    for name, fields in sections.items():
        content[name] |= fields
    return replace(batch, contract=GRPOLossContract(**content))


def as_actual(quantities: Mapping[str, Tensor]) -> dict[str, Any]:
    """Quantities as `oracle.expect.mismatches` wants them."""
    plain = {name: value.float() if value.is_floating_point() else value for name, value in quantities.items()}
    actual: dict[str, Any] = {name: value.numpy() for name, value in plain.items()}
    actual["grad"] = actual.pop(GRADIENT)
    counts = actual["clip_counts"].tolist()
    actual["clip_counts"] = dict(zip(("low", "high", "region", "active"), counts, strict=True))
    return actual


def layout_differences(
    batch: GlobalBatch, layouts: Sequence[tuple[int, int]], baseline: VirtualOutcome | None = None, **options: Any
) -> dict[str, dict[str, int]]:
    """Where layouts differ from 1x1, as "2x3 rank (1, 0)": {quantity: elements}; every rank is looked at."""
    expected = (baseline or run_layout(batch, 1, 1)).quantities()
    found = {}
    for tp, dp in layouts:
        outcome = run_layout(batch, tp, dp, **options)
        assert len(outcome.results) == tp * dp
        for place in outcome.results:
            if counts := differing(expected, outcome.quantities(place)):
                found[f"{tp}x{dp} rank {place}"] = counts
    return found
