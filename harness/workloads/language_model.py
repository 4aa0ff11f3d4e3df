"""Loading a causal language model with transformers: from a folder, a GGUF file, or by its hub name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from grpo_contract import InputError, Problem

INSTALL = "pip install 'grpo-verify[training]'"


@dataclass(frozen=True)
class LoadedModel:
    """A transformers model in evaluation mode (no dropout) and its tokenizer."""

    model: Any
    tokenizer: Any


def load_model(name: str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Load `name`. Raises InputError, without a traceback of others, for what is missing or cannot be read.

    A path that exists is taken as a folder of `save_pretrained` or as a GGUF file; anything else is a hub name,
    which needs the network or the hub's cache.
    """
    _check_installed(name)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, options = _place(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
        model = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, **options)
    except Exception as error:  # whatever libraries below raise, the request is what is wrong
        raise _refused(_expected(name), f"{name!r}: {_first_line(error)}") from None
    return LoadedModel(model.to(device).eval(), tokenizer)


def _check_installed(name: str) -> None:
    needed = ["transformers", *(["gguf"] if name.endswith(".gguf") else [])]
    missing = [each for each in needed if find_spec(each) is None]
    if missing:
        raise _refused(f"{' and '.join(missing)}, installed ({INSTALL})", "not installed")


def _place(name: str) -> tuple[str, dict[str, Any]]:
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path), {}
    if path.is_file():
        if path.suffix != ".gguf":
            raise _refused("a folder, or a file that ends in .gguf", str(path))
        return str(path.parent), {"gguf_file": path.name}
    if _is_path(name):
        raise _refused("a folder, a GGUF file or a hub name", f"{name}, which does not exist")
    return name, {}


def _is_path(name: str) -> bool:
    """Whether `name` can only be a path: hub names are `model` or `owner/model`."""
    return name.endswith(".gguf") or name.startswith((".", "~", os.sep)) or name.count("/") > 1


def _expected(name: str) -> str:
    if Path(name).expanduser().exists():
        return "a model that transformers can load"
    return "a local folder or GGUF file, or a hub name that can be fetched (network) or is cached"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def _refused(expected: str, got: str) -> InputError:
    return InputError(Problem("input.model", "--model", expected, got))
