"""Real steps: the values of the float64 oracle, and equal bits at every layout."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from loss_ops.batch import GlobalBatch
from loss_ops.virtual_layout import run_layout
from support.batches import SLICE, capture_batch, layout_differences

CAPTURES = os.environ.get("GRPO_VERIFY_CAPTURES")
FOUND = sorted(Path(CAPTURES).glob("*.safetensors")) if CAPTURES else []
NORMALIZERS = ("global_active_tokens", "per_sequence_then_mean", "fixed_constant", "length_power")
PARAMETERS = ("sequence_denominator", "fixed_constant", "alpha")
FP32 = {"rtol": 1e-5, "atol": 1e-7}
BF16_ROUNDING = 2.0**-8
"""How far one rounding to nearest moves a number of 8 significant bits, relative to it."""


def load(path: Path, normalizer: str, dtype: torch.dtype) -> tuple[GlobalBatch, dict[str, Any]]:
    """A capture under one normalizer, its stored values exactly as they are or widened, and what must come out."""
    expected = json.loads(path.with_suffix(".expected.json").read_text(encoding="utf-8"))
    values = expected["normalizers"][normalizer]
    given = {name: values[name] for name in PARAMETERS if name in values}
    given |= parameters_of(normalizer, expected) if not given else {}
    batch = capture_batch(path, token_normalizer=normalizer, **given)
    return (widened(batch) if dtype is torch.float32 else batch), expected


def parameters_of(normalizer: str, expected: dict[str, Any]) -> dict[str, Any]:
    slots = expected["shape_btv"][0] * expected["shape_btv"][1]
    return {"fixed_constant": {"fixed_constant": slots}, "length_power": {"alpha": 0.5}}.get(normalizer, {})


def widened(batch: GlobalBatch) -> GlobalBatch:
    content = batch.contract.model_dump()
    content["logprob"]["dtype"] = "float32"
    contract = type(batch.contract)(**content)
    assert batch.ref_logits is not None
    wide: tuple[Tensor, Tensor] = (batch.policy_logits.float(), batch.ref_logits.float())
    return GlobalBatch(*wide, batch.action_ids, batch.old_logps, batch.rewards, batch.completion_mask, contract)


def check_numbers(got: dict[str, Tensor], expected: dict[str, Any], normalizer: str) -> None:
    for name in ("per_sequence_policy", "per_sequence_kl", "advantages"):
        np.testing.assert_allclose(got[name].numpy(), expected[name], **FP32, err_msg=name)
    for name in ("loss", "policy_loss", "kl"):
        np.testing.assert_allclose(got[name].item(), expected["normalizers"][normalizer][name], **FP32)
    assert got["per_sequence_active_tokens"].tolist() == expected["per_sequence_active_tokens"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_the_slice_has_its_expected_values(normalizer: str, dtype: torch.dtype) -> None:
    batch, expected = load(SLICE, normalizer, dtype)
    got = run_layout(batch, 2, 2).quantities((1, 1))
    check_numbers(got, expected, normalizer)
    counts = dict(zip(("low", "high", "region", "active"), got["clip_counts"].tolist(), strict=True))
    assert counts == expected["clip_counts"]
    gradient = got["grad_policy_logits"]
    assert gradient.dtype == dtype
    wide = gradient.double()
    step = BF16_ROUNDING if dtype is torch.bfloat16 else 0.0
    values = expected["normalizers"][normalizer]
    assert wide.abs().sum().item() == pytest.approx(values["grad_abs_sum"], rel=1e-5 + step)
    assert wide.square().sum().sqrt().item() == pytest.approx(values["grad_l2"], rel=1e-5 + step)
    if normalizer == expected["grad_policy_logits"]["normalizer"]:
        assert len(expected["grad_policy_logits"]["largest"]) == 20
        for entry in expected["grad_policy_logits"]["largest"]:
            assert wide[tuple(entry["index_btv"])].item() == pytest.approx(entry["value"], rel=1e-5 + step)


def test_the_gradient_of_bfloat16_is_the_float32_one_rounded_once() -> None:
    narrow, wide = (
        run_layout(load(SLICE, "global_active_tokens", dtype)[0], 1, 1).gradient
        for dtype in (torch.bfloat16, torch.float32)
    )
    assert torch.equal(narrow, wide.bfloat16())
    assert (narrow != 0).float().mean() > 0.5


@pytest.mark.skipif(not FOUND, reason="set GRPO_VERIFY_CAPTURES to a folder of captures with .expected.json")
@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_full_captures(path: Path, normalizer: str) -> None:
    batch, expected = load(path, normalizer, torch.bfloat16)
    check_numbers(run_layout(batch, 1, 1).quantities(), expected, normalizer)
    if normalizer == "global_active_tokens":
        assert layout_differences(batch, [(2, 2), (3, 3), (8, 8), (1, 8)]) == {}
