"""A causal model of a few thousand parameters with the calling convention of transformers, and a task for it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from harness.workloads.language_training import LanguageSettings, LanguageWorkload
from harness.workloads.token_task import TokenTask, one_token_task

VOCABULARY, WIDTH, EOS = 23, 8, 0
PROMPTS = ((3, 5, 7), (4, 1), (9, 2, 2, 6), (8,))


class SmallModel(nn.Module):
    """Embedding, one causal attention layer, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        hidden = self.embedding(input_ids)
        query, key, value = self.mixed(hidden).chunk(3, dim=-1)
        scores = query @ key.transpose(1, 2) / WIDTH**0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        mixed = scores.masked_fill(later, -torch.inf).softmax(dim=-1) @ value
        return SimpleNamespace(logits=self.head(hidden + mixed))


def small_model(seed: int = 0) -> SmallModel:
    """The same parameters for the same seed."""
    torch.manual_seed(seed)
    return SmallModel()


def several_tokens(most: int = 4) -> TokenTask:
    """Answers of up to `most` tokens; the reward counts even tokens, so that groups vary."""
    return TokenTask(PROMPTS, most, EOS, lambda prompt, tokens: float(sum(token % 2 == 0 for token in tokens)))


def one_token() -> TokenTask:
    """One token, right when it is the target."""
    return one_token_task(PROMPTS, (5, 6, 7, 8), EOS)


def small_workload(task: TokenTask | None = None, seed: int = 0, **settings: object) -> LanguageWorkload:
    """A workload on the small model with a learning rate that moves it."""
    chosen = LanguageSettings(**{"samples": 4, "block": 2, "learning_rate": 1e-2, "seed": seed, **settings})  # type: ignore[arg-type]
    return LanguageWorkload(small_model(), chosen, task or several_tokens())
