"""From settings to a workload and a recipe. The language model is imported only when it is trained."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.workloads.combine import Combine
from harness.workloads.mistakes import Mistake
from harness.workloads.tiny_policy import start_table
from harness.workloads.tiny_training import PASSES, TinyWorkload, tiny_contract
from harness.workloads.train_settings import TrainSettings
from harness.workloads.training import Recipe, Workload
from harness.workloads.uniform_stream import Mt19937Stream


def workload_of(settings: TrainSettings, device: torch.device) -> Workload:
    """A fresh workload: the same parameters and the same stream on every rank."""
    if settings.workload == "tiny":
        contract = tiny_contract(**settings.reduction_fields())
        return TinyWorkload(Mt19937Stream(settings.seed), contract=contract, table=start_table(device))
    from harness.workloads.language_model import load_model
    from harness.workloads.language_training import LanguageSettings, LanguageWorkload
    from harness.workloads.token_task import cloze_task, cloze_text_task

    assert settings.model is not None
    chosen = LanguageSettings(
        seed=settings.seed,
        block=settings.block,
        samples=settings.samples,
        allocator=settings.allocator,
        reduction=settings.reduction_fields(),
    )
    loaded, most = load_model(settings.model, device), settings.answer_tokens
    task = cloze_task(loaded.tokenizer) if most == 1 else cloze_text_task(loaded.tokenizer, most)
    return LanguageWorkload(loaded, chosen, task)


def recipe_of(settings: TrainSettings, mistake: str | None, on_part: Callable[[], None]) -> Recipe:
    """How these settings train. A language model computes one block at a time unless told otherwise."""
    own_part = settings.block if settings.workload == "language-model" else None
    return Recipe(
        passes=PASSES,
        combine=Combine(settings.combine),
        micro_batch=settings.micro_batch or own_part,
        mistake=None if mistake is None else Mistake(mistake),
        on_part=on_part,
    )
