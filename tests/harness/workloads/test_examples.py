"""The example programs run, print what they promise, and draw."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import language_model, length_tradeoff, tiny_policy


def test_tiny_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "curves.svg"
    tiny_policy.main(["--seeds", "1", "--updates", "1", "--torch-seeds", "2", "--svg", str(svg)])
    printed = capsys.readouterr()
    assert "finals  0.074859" in printed.out
    assert "2 seeds of torch's generator at once" in printed.out
    assert "update   1 success 0.074859" in printed.err
    assert svg.read_text().startswith("<svg")


def test_length_tradeoff(capsys: pytest.CaptureFixture[str]) -> None:
    length_tradeoff.main(["--groups", "500"])
    assert "0.5    0.14661711" in capsys.readouterr().out


def test_language_model_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert language_model.main(["--model", str(tmp_path / "none.gguf")]) == 2
    assert "--model: expected" in capsys.readouterr().err
