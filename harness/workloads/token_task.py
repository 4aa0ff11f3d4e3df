"""Tasks of a language model in tokens: prompts, longest answer, reward; and the eight cloze prompts. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_contract import InputError, Problem

Tokens = tuple[int, ...]
Reward = Callable[[int, Tokens], float]
"""The reward of an answer to prompt number p; the answer's tokens include a final EOS."""
TextReward = Callable[[str, str], float]
"""The reward of (prompt, answer) as texts; EOS is left out."""

CLOZE: tuple[tuple[str, str], ...] = (
    ("The capital of France is", " Paris"),
    ("The capital of Italy is", " Rome"),
    ("The color of the sky is", " blue"),
    ("The sun rises in the", " east"),
    ("Monday, Tuesday,", " Wednesday"),
    ("A baby cat is called a", " kitten"),
    ("Two plus two equals", " four"),
    ("The color of grass is", " green"),
)
"""Prompts with an answer of one token, none of them certain for a small model."""


@dataclass(frozen=True)
class TokenTask:
    """What a model is trained on. `targets` are the right answers where each is one token, else None."""

    prompts: tuple[Tokens, ...]
    max_new_tokens: int
    eos: int
    reward: Reward
    targets: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        found = [
            Problem("input.prompt", f"prompt {index}", "at least one token", "none")
            for index, prompt in enumerate(self.prompts)
            if not prompt
        ]
        if not self.prompts:
            found.append(Problem("input.prompt", "prompts", "at least one", "none"))
        if self.max_new_tokens < 1:
            found.append(Problem("input.max_new_tokens", "max_new_tokens", "at least 1", str(self.max_new_tokens)))
        if found:
            raise InputError(found)

    @property
    def padded_length(self) -> int:
        """Tokens of the model's input at most: the longest prompt and all new tokens but the last."""
        return max(map(len, self.prompts)) + self.max_new_tokens - 1


def one_token_task(prompts: Sequence[Tokens], targets: Sequence[int], eos: int) -> TokenTask:
    """One sampled token a prompt; reward 1 when it is the target, else 0."""
    right = tuple(targets)
    return TokenTask(tuple(prompts), 1, eos, lambda prompt, tokens: float(tokens[0] == right[prompt]), right)


def cloze_task(tokenizer: Any, pairs: Sequence[tuple[str, str]] = CLOZE) -> TokenTask:
    """The cloze prompts in a tokenizer's tokens. Raises InputError naming the answers that are not one token."""
    encoded = [(_encode(tokenizer, prompt), _encode(tokenizer, answer)) for prompt, answer in pairs]
    found = [
        Problem("input.target", f"answer {text!r} to {prompt!r}", "one token", f"{len(target)} tokens")
        for (prompt, text), (_, target) in zip(pairs, encoded, strict=True)
        if len(target) != 1
    ]
    if found:
        raise InputError(found)
    return one_token_task([prompt for prompt, _ in encoded], [target[0] for _, target in encoded], _eos(tokenizer))


def text_task(tokenizer: Any, prompts: Sequence[str], reward: TextReward, max_new_tokens: int) -> TokenTask:
    """Answers of several tokens, up to EOS, judged as text."""
    eos = _eos(tokenizer)

    def of_tokens(prompt: int, tokens: Tokens) -> float:
        kept = tokens[:-1] if tokens and tokens[-1] == eos else tokens
        return float(reward(prompts[prompt], tokenizer.decode(list(kept))))

    return TokenTask(tuple(_encode(tokenizer, prompt) for prompt in prompts), max_new_tokens, eos, of_tokens)


def cloze_text_task(tokenizer: Any, most: int, pairs: Sequence[tuple[str, str]] = CLOZE) -> TokenTask:
    """The cloze prompts with answers of up to `most` tokens; reward 1 when one begins with the right word."""
    right = {prompt: answer.strip() for prompt, answer in pairs}

    def reward(prompt: str, answer: str) -> float:
        return float(answer.strip().startswith(right[prompt]))

    return text_task(tokenizer, list(right), reward, most)


def _encode(tokenizer: Any, text: str) -> Tokens:
    return tuple(tokenizer(text, add_special_tokens=False).input_ids)


def _eos(tokenizer: Any) -> int:
    if tokenizer.eos_token_id is None:
        raise InputError(Problem("input.eos", "tokenizer", "an end-of-sequence token", "none"))
    return int(tokenizer.eos_token_id)
