"""Capture files: what their header may say, which values are refused before a launch, and writing them."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grpo_contract import GRPOLossContract, GRPOVerifyError, InputError, LogitsDtype
from harness.capture import load_capture, save_capture
from harness.inputs.capture_check import check_capture
from harness.inputs.capture_contract import capture_contract
from harness.inputs.capture_header import read_header
from harness.settings.run_config import RunConfig

DATA = Path(__file__).resolve().parents[1] / "data" / "smollm2-b4-t8.safetensors"
TORCH = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
META = {"format": "grpo-capture-v1", "group_boundaries": "[0, 2]", "beta": "0.04"}
B, T, V, REAL = 2, 3, 8, 7

Tensors = dict[str, torch.Tensor]


def tensors(dtype: torch.dtype = torch.float32) -> Tensors:
    draw = torch.Generator().manual_seed(1)
    return {
        "policy_logits": torch.randn(B, T, V, generator=draw).to(dtype),
        "ref_logits": torch.randn(B, T, V, generator=draw).to(dtype),
        "action_ids": torch.tensor([[0, 1, 2], [3, 4, 5]]),
        "old_logps": torch.full((B, T), -2.0),
        "rewards": torch.tensor([0.0, 1.0]),
        "completion_mask": torch.tensor([[True, True, False], [True, True, True]]),
    }


def write(path: Path, held: Tensors, meta: dict[str, str] | None = None) -> Path:
    from safetensors.torch import save_file

    save_file(held, path, metadata=META if meta is None else meta)
    return path


def contract(path: Path) -> GRPOLossContract:
    return capture_contract(read_header(path), RunConfig())[0]


def header_messages(path: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_header(path)
    return [str(problem).removeprefix(f"{path}: ") for problem in caught.value.problems]


def value_messages(path: Path, real: int = REAL) -> list[str]:
    known = GRPOLossContract.for_batch(
        num_sequences=B, padded_seq_len=T, vocab_size=real, padded_vocab_size=V, group_boundaries=(0, 2)
    )
    with pytest.raises(InputError) as caught:
        check_capture(path, known)
    return [str(problem).removeprefix(f"{path}: ") for problem in caught.value.problems]


def test_real_capture_is_read_checked_and_given_a_contract() -> None:
    header = read_header(DATA)
    assert header.shape == (4, 8, 49152)
    assert header.has_reference
    assert header.group_boundaries == (0, 4)
    made, notes = capture_contract(header, RunConfig())
    assert notes == ()
    assert (made.logprob.dtype, made.logprob.real_vocab_size) == (LogitsDtype.BFLOAT16, 49152)
    assert (made.objective.beta, made.objective.clip_eps_low, made.objective.temperature) == (0.04, 0.2, 1.0)
    check_capture(DATA, made)


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    assert header_messages(path) == ["expected a capture file, got no such file"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a safetensors file, got 0 bytes: cut off, or another format"),
        (b"PK\x03\x04" + b"0" * 40, "expected a safetensors file, got 44 bytes, with a header of "),
        (
            (99).to_bytes(8, "little") + b"{}",
            "expected a safetensors file, got 10 bytes, with a header of 99",
        ),
        ((4).to_bytes(8, "little") + b"nope", "expected a safetensors file, got a header that is not JSON"),
        (
            (2).to_bytes(8, "little") + b"[]",
            "expected a safetensors file, got a header that is not a JSON object",
        ),
        (
            (9).to_bytes(8, "little") + b'{"a": {}}',
            "expected a sound header entry for tensor 'a', got {}",
        ),
    ],
)
def test_files_of_another_kind(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    (found,) = header_messages(path)
    assert found.startswith(message)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.safetensors", tensors()).read_bytes()
    path = tmp_path / "cut.safetensors"
    for size in (*range(0, len(whole), 37), len(whole) - 1):
        path.write_bytes(whole[:size])
        assert len(header_messages(path)) == 1
    assert header_messages(path) == [
        f"expected a file of {len(whole)} bytes, as its header says, got {len(whole) - 1} bytes: cut off"
    ]
    path.write_bytes(whole + b"x")
    assert header_messages(path)[0].endswith(f"got {len(whole) + 1} bytes")


@pytest.mark.parametrize("shape", [[2, 3, 9], [2, 3], [2, 3, "8"], [-2, -3, 8], [True, 3, 8]])
def test_entries_that_lie(tmp_path: Path, shape: list[Any]) -> None:
    whole = write(tmp_path / "x.safetensors", tensors()).read_bytes()
    length = int.from_bytes(whole[:8], "little")
    content = json.loads(whole[8 : 8 + length])
    content["policy_logits"]["shape"] = shape
    text = json.dumps(content).encode()
    path = tmp_path / "lie.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
    assert header_messages(path)[0].startswith("expected a sound header entry for tensor 'policy_logits'")


def test_all_header_problems_at_once(tmp_path: Path) -> None:
    held = tensors()
    del held["rewards"]
    held["old_logps"] = torch.zeros(B, T + 1)
    held["action_ids"] = torch.zeros(B, T)
    held["ref_logits"] = held["ref_logits"].half()
    meta = {"group_boundaries": "[0, 3]", "real_vocab_size": "9", "beta": "nan", "kl_estimator": "k4"}
    assert header_messages(write(tmp_path / "x.safetensors", held, meta)) == [
        "metadata format: expected grpo-capture-v1, got nothing",
        "action_ids: expected dtype I64 or I32, got F32",
        "rewards: expected a tensor, got no such tensor",
        "ref_logits: expected dtype F32, as policy_logits has, got F16",
        "old_logps: expected shape [2, 3] (policy_logits is [2, 3, 8]), got [2, 4]",
        "metadata group_boundaries: expected a JSON list of offsets that rise from 0 to 2, got [0, 3]",
        "metadata real_vocab_size: expected an integer from 1 to 8, got 9",
        "metadata beta: expected a finite number, got nan",
        "metadata kl_estimator: expected one of k1, k2, k3, got k4",
    ]


@pytest.mark.parametrize("edges", ["", "[", "[0]", "[1, 2]", "[0, 0, 2]", "[0, 1.5, 2]", "[false, 2]", '{"a": 1}'])
def test_bad_group_boundaries(tmp_path: Path, edges: str) -> None:
    path = write(tmp_path / "x.safetensors", tensors(), META | {"group_boundaries": edges})
    (found,) = header_messages(path)
    assert found.startswith("metadata group_boundaries: expected a JSON list of offsets")


def test_a_flat_tensor_is_no_logits(tmp_path: Path) -> None:
    held = tensors() | {"policy_logits": torch.zeros(B * T, V)}
    assert "policy_logits: expected shape [B, T, V], none of them 0, got [6, 8]" in header_messages(
        write(tmp_path / "x.safetensors", held)
    )


def test_reference_is_optional_at_beta_zero_only(tmp_path: Path) -> None:
    held = tensors()
    del held["ref_logits"]
    path = write(tmp_path / "x.safetensors", held)
    with pytest.raises(InputError) as caught:
        contract(path)
    assert str(caught.value) == (
        f"invalid input: {path}: ref_logits: expected reference logits "
        "(beta is 0.04; without a reference give --beta 0), got no such tensor"
    )
    made, notes = capture_contract(read_header(path), RunConfig(beta=0))
    assert notes == ("beta 0.0 (--beta) replaces 0.04 of the capture",)
    check_capture(path, made)


@pytest.mark.parametrize("dtype", TORCH)
def test_sound_values_pass_and_masked_slots_may_hold_anything(tmp_path: Path, dtype: str) -> None:
    held = tensors(TORCH[dtype])
    for name in ("policy_logits", "ref_logits"):
        held[name][0, 2] = float("nan")  # masked
        held[name][:, :, REAL] = float("inf")  # padding column
        held[name][0, 0, 5] = -float("inf")  # not the action
    held["action_ids"][0, 2] = -100
    held["old_logps"][0, 2] = float("nan")
    check_capture(
        write(tmp_path / "x.safetensors", held, META | {"real_vocab_size": "7"}),
        contract(tmp_path / "x.safetensors"),
    )


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("name", ["policy_logits", "ref_logits"])
@pytest.mark.parametrize(
    ("column", "value", "got"),
    [
        (6, "nan", "nan in column 6"),
        (6, "inf", "inf in column 6"),
        (4, "-inf", "-inf in column 4, the action"),
        (slice(None), "-inf", "-inf in every column"),
    ],
)
def test_rows_without_a_softmax(tmp_path: Path, dtype: str, name: str, column: Any, value: str, got: str) -> None:
    held = tensors(TORCH[dtype])
    held[name][1, 1, column] = float(value)
    expected = "logits with a softmax over columns 0 to 6, and not -inf at the action"
    assert value_messages(write(tmp_path / "x.safetensors", held)) == [
        f"{name}[1, 1]: expected {expected}, got {got}"
    ]


@pytest.mark.parametrize("dtype", TORCH)
def test_nan_of_either_sign_and_any_payload(tmp_path: Path, dtype: str) -> None:
    for bits in {"F32": (0x7F800001, 0xFFC00000), "BF16": (0x7F81, 0xFFFF), "F16": (0x7C01, 0xFE00)}[dtype]:
        held = tensors(TORCH[dtype])
        size = np.uint32 if dtype == "F32" else np.uint16
        held["policy_logits"][0, 0, 3] = torch.from_numpy(np.array([bits], size)).view(TORCH[dtype])[0]
        assert value_messages(write(tmp_path / "x.safetensors", held))[0].endswith("got nan in column 3")


@pytest.mark.parametrize("dtype", TORCH)
def test_the_largest_finite_numbers_pass(tmp_path: Path, dtype: str) -> None:
    held = tensors(TORCH[dtype])
    held["policy_logits"][0, 0] = torch.finfo(TORCH[dtype]).max
    held["policy_logits"][0, 1] = torch.finfo(TORCH[dtype]).min
    path = write(tmp_path / "x.safetensors", held)
    check_capture(path, contract(path))


def test_all_values_are_judged_at_once(tmp_path: Path) -> None:
    held = tensors()
    held["action_ids"][0, 1], held["action_ids"][1, 2] = 7, -1
    held["old_logps"][1] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    held["old_logps"][0, 0] = float("nan")
    held["rewards"][1] = float("inf")
    assert value_messages(write(tmp_path / "x.safetensors", held)) == [
        "action_ids[0, 1]: expected an id from 0 to 6, got 7",
        "action_ids[1, 2]: expected an id from 0 to 6, got -1",
        "old_logps[0, 0]: expected a finite number, got nan",
        "old_logps[1, 0]: expected a finite number, got nan",
        "old_logps[1, 1]: expected a finite number, got inf",
        "old_logps: expected a finite number, got 1 more such places",
        "rewards[1]: expected a finite number, got inf",
    ]


def test_no_active_token(tmp_path: Path) -> None:
    held = tensors() | {"completion_mask": torch.zeros(B, T, dtype=torch.bool)}
    assert value_messages(write(tmp_path / "x.safetensors", held)) == [
        "completion_mask: expected an active token in the batch, got no active tokens in 2 x 3 slots"
    ]


def test_save_and_load(tmp_path: Path) -> None:
    held = tensors(torch.bfloat16)
    held["ref_logits"] = held["policy_logits"]
    given = held | {
        "rewards": held["rewards"].double(),
        "completion_mask": held["completion_mask"].to(torch.uint8),
        "action_ids": held["action_ids"].to(torch.int32),
        "policy_logits": held["policy_logits"].clone().requires_grad_(),
    }
    path = save_capture(
        tmp_path / "a" / "x.safetensors", **given, group_boundaries=(0, 2), beta=0.5, step=None, model="m"
    )
    loaded = load_capture(path)
    assert loaded.keys() == held.keys()
    for name, value in held.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value)
    assert read_header(path).metadata == {
        "format": "grpo-capture-v1",
        "group_boundaries": "[0, 2]",
        "beta": "0.5",
        "model": "m",
    }
    assert [each.name for each in path.parent.iterdir()] == ["x.safetensors"]
    check_capture(path, contract(path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_mask_of_zeros_and_ones_may_be_of_floats(tmp_path: Path, dtype: torch.dtype) -> None:
    held, group_boundaries = tensors(), [0, 2]
    mask = held["completion_mask"]
    held["completion_mask"] = mask.to(dtype)
    path = save_capture(tmp_path / "c.safetensors", **held, group_boundaries=group_boundaries)
    assert torch.equal(load_capture(path)["completion_mask"], mask.bool())


@pytest.mark.parametrize("value", [0.5, float("nan"), -1.0, 1.0 + 2**-20])
def test_a_mask_of_other_floats_is_refused_where_it_has_one(tmp_path: Path, value: float) -> None:
    held = tensors()
    held["completion_mask"] = torch.ones(held["completion_mask"].shape)
    held["completion_mask"][1, 2] = value
    with pytest.raises(
        InputError, match=r"completion_mask\[1, 2\]: expected bool, .* exactly 0 or 1, got"
    ) as refused:
        save_capture(tmp_path / "c.safetensors", **held, group_boundaries=[0, 2])
    assert len(refused.value.problems) == 1
    assert not list(tmp_path.iterdir())


def test_save_takes_views_and_one_tensor_twice(tmp_path: Path) -> None:
    held = tensors()
    wide = torch.zeros(B, T, 2 * V)
    held["policy_logits"] = held["ref_logits"] = wide[:, :, ::2]
    path = save_capture(tmp_path / "x.safetensors", **held, group_boundaries=[0, 2])
    assert torch.equal(load_capture(path)["ref_logits"], wide[:, :, ::2])


def test_save_refuses_before_it_writes(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", tensors())
    before = path.read_bytes()
    bad = tensors() | {
        "rewards": torch.zeros(3),
        "action_ids": torch.zeros(B, T),
        "old_logps": torch.zeros(B),
    }
    with pytest.raises(InputError) as caught:
        save_capture(path, **bad, group_boundaries=(0, 1), temperature="hot")
    assert [str(problem) for problem in caught.value.problems] == [
        "action_ids: expected dtype I64 or I32, got F32",
        "old_logps: expected shape [2, 3] (policy_logits is [2, 3, 8]), got [2]",
        "rewards: expected shape [2] (policy_logits is [2, 3, 8]), got [3]",
        "metadata group_boundaries: expected a JSON list of offsets that rise from 0 to 2, got [0, 1]",
        "metadata temperature: expected a finite number, got hot",
    ]
    assert path.read_bytes() == before


def test_logits_in_double_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="policy_logits: expected dtype F32 or BF16 or F16, got F64"):
        save_capture(tmp_path / "x.safetensors", **tensors(torch.float64), group_boundaries=(0, 2))


def test_load_refuses_what_the_header_check_refuses(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="metadata format"):
        load_capture(write(tmp_path / "x.safetensors", tensors(), {}))


def test_one_long_sequence_is_looked_at_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.inputs.capture_check._ROW_ELEMENTS", 1)
    held = tensors()
    held["policy_logits"][1, 2, 0] = float("nan")
    assert value_messages(write(tmp_path / "x.safetensors", held))[0].startswith("policy_logits[1, 2]")


def test_every_contract_field_of_the_metadata_is_a_default(tmp_path: Path) -> None:
    fields = {
        "beta": 0.1, "clip_eps": 0.1, "clip_eps_high": 0.28, "temperature": 2.0, "kl_estimator": "k1",
        "token_normalizer": "fixed_constant", "fixed_constant": 12.0, "advantage": "mean_std_sample",
        "std_eps": 1e-4, "std_eps_mode": "add",
    }  # fmt: skip
    path = save_capture(tmp_path / "x.safetensors", **tensors(), group_boundaries=(0, 2), **fields)
    expected = GRPOLossContract.for_batch(
        num_sequences=B, padded_seq_len=T, vocab_size=V, group_boundaries=(0, 2), **fields
    )
    assert contract(path) == expected
    given = RunConfig(normalizer="per_sequence_then_mean", clip_eps_high=0.3)
    made, notes = capture_contract(read_header(path), given)
    assert (made.reduction.fixed_constant, made.objective.clip_eps_high) == (None, 0.3)
    assert notes == (
        "token_normalizer per_sequence_then_mean (--normalizer) leaves out fixed_constant 12.0 of the capture",
        "clip_eps_high 0.3 (--clip-eps-high) replaces 0.28 of the capture",
        "token_normalizer per_sequence_then_mean (--normalizer) replaces fixed_constant of the capture",
    )


@pytest.mark.parametrize(
    "name", ["betaa", "Beta", "temprature", "clip_epsilon", "epsilon_low", "kl", "vocab_size"]
)
def test_metadata_that_nearly_reads_like_a_contract_field_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(
        InputError, match=f"metadata: expected one of real_vocab_size, clip_eps, beta, .* got {name}$"
    ):
        save_capture(path, **tensors(), group_boundaries=(0, 2), **{name: 1})
    assert not path.exists()
    with pytest.raises(InputError, match=name):
        contract(write(path, tensors(), META | {name: "1"}))


def test_free_text_stays_and_wrong_values_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    free = dict.fromkeys(("completions", "prompts", "model", "note", "step", "licence", "slice", "dataset"), "x")
    assert (
        read_header(save_capture(path, **tensors(), group_boundaries=(0, 2), **free)).metadata.items()
        >= free.items()
    )
    with pytest.raises(InputError) as caught:
        save_capture(path, **tensors(), group_boundaries=(0, 2), std_eps="small", advantage="mean")
    assert [str(problem) for problem in caught.value.problems] == [
        "metadata std_eps: expected a finite number, got small",
        "metadata advantage: expected one of mean_std_population, mean_std_sample, mean_only, got mean",
    ]


def test_what_cannot_be_read_to_its_end_is_no_capture(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    found = {tmp_path / "pipe.safetensors": "a named pipe", tmp_path: "a folder", Path("/dev/zero"): "a device"}
    for path, got in found.items():
        assert header_messages(path) == [f"expected a readable capture file, got {got}"]


def test_a_header_with_a_number_beyond_all_reason(tmp_path: Path) -> None:
    text = f'{{"a": {"9" * 6000}}}'.encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    assert header_messages(path) == ["expected a safetensors file, got a header that is not JSON"]


def test_metadata_beyond_float32_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", tensors(), META | {"std_eps": "1e308"})
    with pytest.raises(GRPOVerifyError, match=r"std_eps: expected at most 3.4028235e\+38"):
        capture_contract(read_header(path), RunConfig())
