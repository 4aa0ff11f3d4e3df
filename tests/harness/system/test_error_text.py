from __future__ import annotations

from pathlib import Path

import pytest

from grpo_contract import InputError
from harness.own_ops.ops import resolve
from harness.settings.batch_spec import BUILT_IN
from harness.system.error_text import message_of, named
from support.batches import spec_contract


class SilentError(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_an_error_that_cannot_be_asked_is_told_by_its_place() -> None:
    told = message_of(raised(SilentError()))
    assert told.startswith("no message, as its __str__ raises KeyError; raised at raised (test_error_text.py:")


def test_what_no_stream_can_carry_is_escaped() -> None:
    assert message_of(ValueError("a\udc80b")) == "a\\udc80b"


def test_an_error_without_words_is_its_type() -> None:
    assert named(ValueError()) == "ValueError"
    assert named(ValueError("x: y")) == "ValueError: x: y"


def test_an_op_whose_import_raises_such_an_error_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "class Silent(Exception):\n    def __str__(self):\n        raise KeyError\nraise Silent\n"
    (tmp_path / "silent_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"which raises Silent: no message, as its __str__ raises KeyError"):
        resolve("silent_module:loss", None, spec_contract(BUILT_IN["seed"]), "cpu")
