"""Loading a causal language model with transformers: from a folder, a GGUF file, or by its hub name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.workloads.model_place import check_installed, place_of, refused


@dataclass(frozen=True)
class LoadedModel:
    """A transformers model in evaluation mode (no dropout) and its tokenizer."""

    model: Any
    tokenizer: Any


def load_model(name: str, device: torch.device | str = "cpu") -> LoadedModel:
    """Load `name`. Raises InputError, without a traceback of others, for what is missing or cannot be read.

    A path that exists is taken as a folder of `save_pretrained` or as a GGUF file; anything else is a hub name,
    which needs the network or the hub's cache.
    """
    check_installed(name)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, options = place_of(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
        model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **options)
    except Exception as error:  # whatever libraries below raise, the request is what is wrong
        raise refused(_expected(name), f"{name!r}: {_first_line(error)}") from None
    return LoadedModel(model.to(device).eval(), tokenizer)


def _expected(name: str) -> str:
    if Path(name).expanduser().exists():
        return "a model that transformers can load"
    return "a local folder or GGUF file, or a hub name that can be fetched (network) or is cached"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
