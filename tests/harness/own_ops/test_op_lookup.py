"""A foreign op that cannot run is refused by its source, before a launch; a doubtful one is left to the ranks."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from grpo_contract import InputError
from harness.own_ops.op_lookup import op_problem
from harness.own_ops.ops import resolve
from harness.runs.node_plan import prepare_nodes
from harness.runs.request import plan_for
from harness.settings.batch_spec import BUILT_IN, contract_for
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig

ROOT = Path(__file__).resolve().parents[3]
CONTRACT = contract_for(BUILT_IN["seed"], RunConfig())
TAKES = "policy_local_logits, action_ids, old_logps, rewards, *, contract, sharding, completion_mask"
OPS = f"""
import functools
from math import prod as product
LIMIT = 3
TABLE: dict = {{}}
def good({TAKES}, ref_local_logits, tp_group=None, dp_group=None): ...
def anything(logits, *rest, **more): ...
def two(logits, labels): ...
def one_more({TAKES}, ref_local_logits, tp_group, dp_group, extra): ...
def no_mask(policy_local_logits, action_ids, old_logps, rewards, *, contract, sharding): ...
async def later(*tensors, **context): ...
@functools.wraps(two)
def decorated(a): ...
alias = two
partial = functools.partial(anything, more=1)
short = lambda logits: logits
class Op:
    def apply(self, a, b, c, d, **context): ...
class Static:
    @staticmethod
    def apply(a, b, c, d, **context): ...
class Called:
    def __call__(self, *tensors, **context): ...
class Three:
    def apply(self, a, b, c): ...
class Forward:
    def forward(self, x): ...
class Built:
    def __init__(self, beta): ...
    def apply(self, *tensors, **context): ...
class Derived(Op):
    pass
if LIMIT:
    def chosen(a): ...
else:
    def chosen(*tensors, **context): ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with modules of ops in it; names that no other test uses."""
    (tmp_path / "lookup_ops.py").write_text(OPS)
    (tmp_path / "lookup_needs.py").write_text("import lookup_not_installed\ndef f(): ...\n")
    (tmp_path / "lookup_tries.py").write_text(
        "try:\n    import lookup_not_installed\nexcept ImportError:\n    pass\n"
    )
    (tmp_path / "lookup_broken.py").write_text("\ndef f(:\n")
    (tmp_path / "lookup_star.py").write_text("from lookup_ops import *\n")
    (tmp_path / "lookup_raises.py").write_text("raise RuntimeError('no good')\n")
    (tmp_path / "lookup_made.py").write_text("globals()['f'] = None\n")
    package = tmp_path / "lookup_package"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import two as renamed, gone\nfrom .inner import good\n")
    (package / "inner.py").write_text(OPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("lookup_nowhere:f", "installed package or of one in this folder, got lookup_nowhere:f, and there is no"),
        (
            "lookup_ops.sub:f",
            "a module that is there, got lookup_ops.sub:f, and there is no module lookup_ops.sub",
        ),
        ("lookup_package.iner:two", "a module that is there (did you mean inner?), got lookup_package.iner:two"),
        (
            "lookup_ops:god",
            "a name that lookup_ops.py holds (did you mean good?), got lookup_ops:god, and there is",
        ),
        ("lookup_package:gone", "a name that inner.py holds, got lookup_package:gone, and there is no gone in it"),
        (
            "lookup_needs:f",
            "can be imported, got lookup_needs:f, which cannot: lookup_needs.py:1: there is no package",
        ),
        ("lookup_broken:f", "lookup_broken:f, which cannot: lookup_broken.py:2: invalid syntax"),
        ("lookup_ops:LIMIT", "an op with `apply`, or a function, got lookup_ops:LIMIT, which cannot be called"),
        ("lookup_ops:TABLE", "which cannot be called"),
        ("lookup_ops:two", "a function that takes (logits, labels): too many positional arguments"),
        ("lookup_ops:alias", "got lookup_ops:alias, a function that takes (logits, labels)"),
        ("lookup_package:renamed", "got lookup_package:renamed, a function that takes (logits, labels)"),
        ("lookup_ops:short", "a lambda that takes (logits): too many positional arguments"),
        ("lookup_ops:one_more", "missing a required argument: 'extra'"),
        ("lookup_ops:no_mask", "got an unexpected keyword argument 'completion_mask'"),
        ("lookup_ops:later", "an async function, which returns no loss"),
        ("lookup_ops:Three", "a class whose apply takes (a, b, c): too many positional arguments"),
        ("lookup_ops:Forward", "a class with forward alone, without apply or __call__"),
        ("lookup_ops:Built", "a class that can be built without arguments, got lookup_ops:Built, a class whose"),
    ],
)
def test_what_is_certain_is_refused(op: str, words: str) -> None:
    problem = op_problem(op, "--op")
    assert problem is not None
    assert problem.where == "--op"
    assert words in str(problem)


@pytest.mark.parametrize(
    "op",
    [
        *(f"lookup_ops:{name}" for name in ("good", "anything", "decorated", "partial", "Op", "Static", "Called")),
        *(f"lookup_ops:{name}" for name in ("Derived", "chosen", "product", "Op.apply")),
        "lookup_package:good",
        "lookup_package.inner:good",
        "lookup_star:good",
        "os.path:join",
        "torch.nn.functional:nll_loss",
        "lookup_made:f",
        "examples.all_reduce_loss:all_reduce_loss",
        "examples.arrival_order_sum:ArrivalOrderSum",
    ],
)
def test_what_is_right_or_doubtful_is_left_to_the_ranks(op: str) -> None:
    assert op_problem(op, "--op") is None


def test_an_import_that_may_fail_is_no_obstacle() -> None:
    problem = op_problem("lookup_tries:f", "--op")
    assert "no f in it" in str(problem)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("lookup_ops:nothing", "raises AttributeError"),
        ("lookup_raises:f", "lookup_raises:f, which raises RuntimeError: no good"),
        ("lookup_ops:Built", "raises TypeError"),
        ("lookup_ops:two", r"which takes \(logits, labels\): too many positional arguments"),
        ("torch.nn.functional:nll_loss", "got an unexpected keyword argument 'contract'"),
        ("lookup_ops:decorated", "too many positional arguments"),
        ("lookup_ops:LIMIT", "lookup_ops:LIMIT, a int"),
    ],
)
def test_a_rank_refuses_what_only_an_import_shows(op: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        resolve(op, None, CONTRACT, "cpu")


def test_a_rank_takes_what_can_be_called(folder: Path) -> None:
    for name in ("good", "anything", "partial", "Op", "Static", "Called", "Derived", "Static.apply"):
        assert callable(resolve(f"lookup_ops:{name}", None, CONTRACT, "cpu").apply)


def test_a_torch_module_is_called_and_not_applied(folder: Path) -> None:
    (folder / "lookup_module.py").write_text(
        "from torch import nn\n"
        "class Loss(nn.Module):\n"
        "    def forward(self, logits, *rest, **more): return {'loss': logits.sum()}\n"
        "class Wrong(nn.Module):\n"
        "    def forward(self, logits): ...\n"
    )
    importlib.invalidate_caches()
    assert isinstance(resolve("lookup_module:Loss", None, CONTRACT, "cpu").apply, nn.Module)
    with pytest.raises(InputError, match="too many positional arguments"):
        resolve("lookup_module:Wrong", None, CONTRACT, "cpu")


APPLIED = (
    "from torch import nn\n"
    "class Own(nn.Module):\n"
    "    def forward(self, logits): ...\n"
    "    def apply(self, *tensors, **context): return {'loss': 'own'}\n"
    "class Set(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.apply = lambda *tensors, **context: {'loss': 'own'}\n"
    "class Parts(nn.Module):\n"
    "    def forward(self, *tensors, **context): return {'loss': 'called'}\n"
    "    def apply(self, function): ...\n"
    "class Neither(nn.Module):\n"
    "    def forward(self, logits): ...\n"
    "    def apply(self, function): ...\n"
)


@pytest.mark.parametrize(("name", "loss"), [("Own", "own"), ("Set", "own"), ("Parts", "called")])
def test_a_torch_module_may_have_an_apply_that_is_a_loss(folder: Path, name: str, loss: str) -> None:
    (folder / "lookup_applied.py").write_text(APPLIED)
    importlib.invalidate_caches()
    op = resolve(f"lookup_applied:{name}", None, CONTRACT, "cpu")
    assert op.apply(1, 2, 3, 4, contract=CONTRACT) == {"loss": loss}
    with pytest.raises(InputError, match=r"which takes \(logits\): too many positional arguments"):
        resolve("lookup_applied:Neither", None, CONTRACT, "cpu")


def test_a_run_for_another_machine_needs_no_imports_here(folder: Path) -> None:
    asked: dict[str, Any] = {"tp": 2, "device": "cpu", "batch": ("seed",), "controls": "off"}
    (folder / "lookup_far.py").write_text("import lookup_not_installed\ndef f(*tensors, **context): ...\n")
    with pytest.raises(RequestError, match="there is no package lookup_not_installed"):
        plan_for(RunConfig(op="lookup_far:f", **asked))
    text = prepare_nodes(RunConfig(op="lookup_far:f", out=folder / "plan", **asked))
    assert "cases for 2 ranks on cpu, prepared in" in text
    with pytest.raises(RequestError, match="there is no g in it"):
        prepare_nodes(RunConfig(op="lookup_far:g", out=folder / "other", **asked))


def test_the_command_refuses_at_once(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "harness.cli", "--op", "lookup_ops:god", "--tp", "2"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--op: expected a name that lookup_ops.py holds (did you mean good?)" in done.stderr
    loaded = {
        line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")
    }
    assert "harness.own_ops.op_lookup" in loaded
    assert not loaded & {"torch", "lookup_ops"}
