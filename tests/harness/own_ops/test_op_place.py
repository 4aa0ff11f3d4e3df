"""An op that is found elsewhere than in the current folder, which holds a module of that name too, is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.own_ops.op_place import hidden_notes
from harness.runs.node_plan import elsewhere
from harness.runs.request import plan_for
from harness.settings.run_config import RunConfig

OP = "def loss(*tensors, **context): ...\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path beside the current one; both hold the package and the module of an op."""
    site, here = tmp_path / "site", tmp_path / "here"
    for folder in (site, here):
        (folder / "placed_trainer").mkdir(parents=True)
        (folder / "placed_trainer" / "__init__.py").write_text("raise RuntimeError('imported')\n")
        (folder / "placed_trainer" / "loss.py").write_text(OP)
        (folder / "placed_alone.py").write_text(OP)
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.mark.parametrize(
    ("op", "file"),
    [
        ("placed_trainer.loss:loss", "placed_trainer/loss.py"),
        ("placed_trainer:loss", "placed_trainer/__init__.py"),
        ("placed_alone:loss", "placed_alone.py"),
    ],
)
def test_both_files_are_named_and_none_is_imported(site: Path, op: str, file: str) -> None:
    assert hidden_notes(op) == (f"op {op} is {site}/{file}, not ./{file}",)
    assert not {name for name in sys.modules if name.startswith("placed_")}


def test_the_plan_says_so_where_the_ranks_run_here(site: Path) -> None:
    config = RunConfig(op="placed_alone:loss", tp=2, batch=("seed",), controls="off", device="cpu")
    (note,) = hidden_notes(config.op)
    assert note in plan_for(config).notes
    assert note not in plan_for(config, elsewhere(config)).notes


def test_one_file_is_no_news(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "placed_alone.py").unlink()
    (site / "placed_trainer" / "loss.py").unlink()
    for op in ("placed_alone:loss", "placed_trainer.loss:loss", "grpo_loss", "placed_absent:loss", "sys:path"):
        assert hidden_notes(op) == ()
    (tmp_path / "here" / "placed_alone.py").symlink_to(site / "placed_alone.py")
    assert hidden_notes("placed_alone:loss") == ()
    monkeypatch.chdir(site)
    assert hidden_notes("placed_trainer:loss") == ()
