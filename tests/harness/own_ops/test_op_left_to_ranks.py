"""Ops that can run and do not look like it in their source: none of them is refused before a launch."""

from __future__ import annotations

import importlib
import py_compile
import sys
import warnings
from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from grpo_contract import InputError
from harness.own_ops.op_lookup import op_problem
from harness.own_ops.ops import resolve
from harness.settings.batch_spec import BUILT_IN, contract_for
from harness.settings.run_config import RunConfig

CONTRACT = contract_for(BUILT_IN["seed"], RunConfig())
GOOD = "def real(*tensors, **context): return {'loss': tensors[0].sum()}\n"
CLASS = f"{GOOD}class loss:\n    def __init__(self, scale=1): self.scale = scale\n"
VALID: dict[str, Mapping[str, str]] = {
    "set_by_a_function": {"op": f"{GOOD}loss = None\ndef fill():\n    global loss\n    loss = real\nfill()\n"},
    "set_in_globals": {"op": f"{GOOD}loss = None\nglobals()['loss'] = real\n"},
    "set_in_vars": {"op": f"import sys\n{GOOD}loss = None\nvars(sys.modules[__name__])['loss'] = real\n"},
    "set_on_itself": {"op": f"import op as me\n{GOOD}loss = None\nme.loss = real\n"},
    "set_by_another": {"op": "loss = None\nimport fills\n", "fills": f"import op\n{GOOD}op.loss = real\n"},
    "set_by_setattr": {
        "op": "loss = None\nimport fills\n",
        "fills": f"import op\n{GOOD}setattr(op, 'loss', real)\n",
    },
    "patched_function": {
        "op": "def loss(logits, labels): ...\nimport fills\n",
        "fills": f"import op\n{GOOD}op.loss = real\n",
    },
    "apply_of_a_function": {"op": f"{GOOD}def loss(logits, labels): ...\nloss.apply = real\n"},
    "apply_after_the_class": {"op": f"{CLASS}loss.apply = staticmethod(real)\n"},
    "apply_under_another_name": {"op": f"{CLASS}Other = loss\nOther.apply = staticmethod(real)\n"},
    "apply_by_a_function": {
        "op": f"from fills import fill\n{CLASS}fill(loss)\n",
        "fills": f"{GOOD}def fill(cls): cls.apply = staticmethod(real)\n",
    },
    "apply_of_self": {"op": f"{GOOD}class loss:\n    def __init__(self): self.apply = real\n"},
    "call_after_the_class": {"op": f"{CLASS}loss.__call__ = lambda self, *t, **c: real(*t, **c)\n"},
    "class_of_self": {
        "op": f"{GOOD}class Real:\n    apply = staticmethod(real)\n"
        "class loss:\n    def __init__(self): self.__class__ = Real\n"
    },
    "init_with_a_decorator": {
        "op": f"{GOOD}def filled(function): return lambda self: function(self, 0.1)\n"
        "class loss:\n    @filled\n    def __init__(self, beta): self.beta = beta\n"
        "    def apply(self, *tensors, **context): return real(*tensors)\n"
    },
    "init_after_the_class": {
        "op": f"{GOOD}class loss:\n    def __init__(self, beta): self.beta = beta\n"
        "    def apply(self, *tensors, **context): return real(*tensors)\n"
        "loss.__init__ = lambda self: None\n"
    },
    "decorated_class": {"op": f"{GOOD}def swapped(cls): return real\n@swapped\nclass loss: ...\n"},
    "metaclass": {
        "op": f"{GOOD}class Meta(type):\n    def __call__(cls): return real\nclass loss(metaclass=Meta): ...\n"
    },
    "property": {"op": f"{GOOD}class loss:\n    @property\n    def apply(self): return real\n"},
    "attribute_by_name": {"op": f"{GOOD}class loss:\n    def __getattribute__(self, name): return real\n"},
    "star_beside_a_comprehension": {"op": "from fills import *\nx = [loss for loss in 'ab']\n", "fills": "{LOSS}"},
    "star_after_a_constant": {"op": "loss = None\nfrom fills import *\n", "fills": "{LOSS}"},
    "walrus": {"op": f"{GOOD}x = [(loss := real) for _ in 'a']\n"},
    "pattern": {"op": f"{GOOD}match real:\n    case loss: pass\n"},
    "caught": {"op": f"{GOOD}if True:\n    with open(__file__) as x:\n        loss = real\n"},
    "chosen": {"op": f"{GOOD}loss = None\nif real:\n    loss = real\n"},
    "either": {"op": "try:\n    from absent_fast import loss\nexcept ImportError:\n    from fills import loss\n"}
    | {"fills": "{LOSS}"},
    "either_constant": {"op": f"{GOOD}try:\n    loss = real\nexcept ImportError:\n    loss = None\n"},
    "async_with_a_decorator": {"op": f"{GOOD}def now(f): return real\n@now\nasync def loss(logits): ...\n"},
    "walrus_in_a_class": {"op": f"{GOOD}class loss:\n    (apply := staticmethod(real))\n"},
    "set_in_a_frame": {
        "op": "loss = None\nfrom fills import fill\nfill()\n",
        "fills": f"import inspect\n{GOOD}def fill(): inspect.currentframe().f_back.f_globals['loss'] = real\n",
    },
    "set_in_the_globals_of_a_function": {
        "op": "from fills import fill\ndef here(): ...\nfill(here)\n",
        "fills": f"{GOOD}def fill(function): function.__globals__['loss'] = real\n",
    },
    "set_by_mock": {
        "op": "from unittest.mock import patch\nimport fills\nloss = None\npatch('op.loss', fills.real).start()\n",
        "fills": GOOD,
    },
    "modules_by_name": {
        "op": f"import sys, types\n{GOOD}loss = None\nmade = types.SimpleNamespace(loss=real)\n"
        "getattr(sys, 'modules')[__name__] = made\n"
    },
    "deep_source": {"op": f"x = {' + '.join('1' * 1500)}\n{{LOSS}}"},
    "module_getattr": {"op": f"{GOOD}def __getattr__(name): return real\n"},
    "module_getattr_assigned": {"op": f"{GOOD}__getattr__ = lambda name: real\n"},
    "module_getattr_imported": {"op": "from fills import __getattr__\n"}
    | {"fills": f"{GOOD}def __getattr__(name): return real\n"},
    "module_getattr_attached": {
        "op": "from fills import attach\n__getattr__, __dir__, __all__ = attach()\n",
        "fills": f"{GOOD}def attach(): return lambda name: real, list, []\n",
    },
    "import_for_types": {
        "op": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import absent_types\n{LOSS}"
    },
    "import_in_a_function": {"op": "def later(): import absent_later\n{LOSS}"},
    "import_of_main": {"op": "import __main__\n{LOSS}"},
    "path_by_another": {
        "op": "import setup_path\nimport hidden\n{LOSS}",
        "setup_path": "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'vendor'))\n",
        "vendor/hidden": "",
    },
    "path_by_the_package": {
        "op/__init__": "from sys import path\npath.insert(0, __path__[0] + '/vendor')\n",
        "op/vendor/hidden": "",
        "op:op.inner": "",
        "op/inner": "import hidden\n{LOSS}",
    },
    "put_into_modules": {
        "op": "import setup_modules\nimport hidden\n{LOSS}",
        "setup_modules": "import sys\nsys.modules['hidden'] = sys\n",
    },
    "other_module_by_path": {
        "op": "import setup_path\nfrom twice import loss\n",
        "setup_path": "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'vendor'))\n",
        "twice": "def loss(logits, labels): ...\n",
        "vendor/twice": "{LOSS}",
    },
    "module_made": {
        "op:op.inner": "",
        "op/__init__": "from op import make\n",
        "op/make": f"import sys, types\n{GOOD}made = types.ModuleType('op.inner')\nmade.loss = real\n"
        "sys.modules['op.inner'] = made\n",
    },
    "module_made_of_a_file": {
        "op:op.inner": "",
        "op": f"import sys, types\n{GOOD}made = types.ModuleType('op.inner')\nmade.loss = real\n"
        "sys.modules['op.inner'] = made\n",
    },
    "module_replaced": {
        "op": f"import sys\n{GOOD}class Lazy:\n    loss = staticmethod(real)\nsys.modules[__name__] = Lazy()\n"
    },
    "in_nested_folders": {"op:nsa.nsb.mod": "", "nsa/nsb/mod": "{LOSS}"},
    "in_a_folder_of_a_package": {"op:op.nsb.nsc.mod": "", "op/__init__": "", "op/nsb/nsc/mod": "{LOSS}"},
}


def written(folder: Path, files: Mapping[str, str]) -> str:
    """Write modules by their paths; a key `op:NAME` says which module holds the op."""
    name = "op"
    for path, text in files.items():
        if path.startswith("op:"):
            name = path.removeprefix("op:")
            continue
        file = folder / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("{LOSS}", GOOD + "loss = real\n"))
    importlib.invalidate_caches()
    return f"{name}:loss"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, and after the test an interpreter that has imported nothing of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return tmp_path


@pytest.fixture(autouse=True)
def _forgotten() -> object:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("case", VALID)
def test_an_op_that_runs_is_not_refused(case: str, folder: Path) -> None:
    op = written(folder, VALID[case])
    assert op_problem(op, "--op") is None
    assert callable(resolve(op, None, CONTRACT, "cpu").apply)


def test_a_module_without_source_is_left_to_the_ranks(folder: Path) -> None:
    op = written(folder, {"op": f"{GOOD}loss = real\n"})
    py_compile.compile("op.py", cfile="op.pyc")
    (folder / "op.py").unlink()
    importlib.invalidate_caches()
    assert op_problem(op, "--op") is None
    assert callable(resolve(op, None, CONTRACT, "cpu").apply)


def test_a_warning_of_the_parser_refuses_nothing(folder: Path) -> None:
    op = written(folder, {"op": "x = '\\d'\n{LOSS}"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert op_problem(op, "--op") is None


def test_packages_of_another_machine_are_not_judged_by_this_one(folder: Path) -> None:
    filled = "import absent_here\nclass loss: ...\nabsent_here.fill(loss)\n"
    assert op_problem(written(folder, {"op": filled}), "--op", is_here=False) is None
    assert "there is no package absent_here" in str(op_problem("op:loss", "--op"))
    assert "there is no lose in it" in str(op_problem("op:lose", "--op", is_here=False))


def test_a_compiled_module_is_left_to_the_ranks(folder: Path) -> None:
    written(folder, {"package/__init__": "from package.fast import loss\n", "op": "from fast_op import loss\n"})
    for name in ("package/fast", "fast_op"):
        (folder / f"{name}{EXTENSION_SUFFIXES[0]}").touch()
    importlib.invalidate_caches()
    for op in ("package:loss", "package:los", "package.fast:loss", "package.fats:loss", "op:loss", "fast_op:loss"):
        assert op_problem(op, "--op") is None


INSTALLED: dict[str, Mapping[str, str]] = {
    "path": {"op": "import fills\nimport hidden\n{LOSS}"},
    "module": {"op:op.inner": "", "op/__init__": "import fills\nfills.fill(__name__)\n"},
    "name": {"op": "import fills\nfills.fill(__name__)\n"},
    "class": {"op": "import fills\nclass loss: ...\nfills.fill(loss)\n"},
    "function": {"op": "import fills\ndef loss(logits): ...\nfills.fill(one=[loss])\n"},
}


@pytest.mark.parametrize("case", INSTALLED)
def test_what_an_installed_package_may_do_is_left_to_the_ranks(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder / "site-packages", {"fills": "def fill(*any): ...\n"})
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder / "site-packages")])
    assert op_problem(written(folder, INSTALLED[case]), "--op") is None
    written(folder, {"plain": "import fills\ndef two(logits): ...\n"})
    assert "there is no tow in it" in str(op_problem("plain:tow", "--op"))
    assert "(logits): too many" in str(op_problem("plain:two", "--op"))


def test_a_folder_of_several_places_is_looked_through(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder / "elsewhere", {"nsa/other": GOOD, "op/other": GOOD})
    written(folder, {"nsa/mod": "{LOSS}", "op/__init__": "{LOSS}"})
    monkeypatch.setattr(sys, "path", [str(folder / "elsewhere"), *sys.path])
    for op in ("nsa.mod:loss", "nsa.other:real", "op:loss"):
        assert op_problem(op, "--op") is None
        assert callable(resolve(op, None, CONTRACT, "cpu").apply)


def test_the_users_folder_hides_nothing_from_the_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` puts it first on the parent's path; ranks have it last."""
    written(folder / "elsewhere", {"op": "{LOSS}"})
    written(folder, {"op": "def loss(logits): ...\n"})
    monkeypatch.setattr(sys, "path", [str(folder), str(folder / "elsewhere"), *sys.path])
    assert op_problem("op:loss", "--op") is None


class _Hook:
    """As an editable installation has one: it leads one name, and what is below it, to a folder elsewhere."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.name and not name.startswith(f"{self.name}."):
            return None
        place = self.folder.joinpath(*name.split(".")[self.name.count(".") + 1 :])
        if place.is_dir():
            return spec_from_file_location(name, place / "__init__.py", submodule_search_locations=[str(place)])
        return spec_from_file_location(name, place.with_suffix(".py"))


@pytest.mark.parametrize("name", ["op", "nsa.op"])
def test_an_editable_installation_is_found(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, {"nsa/other": "", "src/__init__": "", "src/inner": "{LOSS}"})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, _Hook(name, folder / "src")])
    assert op_problem(f"{name}.inner:loss", "--op") is None
    assert callable(resolve(f"{name}.inner:loss", None, CONTRACT, "cpu").apply)
    assert "there is no gone in it" in str(op_problem(f"{name}.inner:gone", "--op"))


def test_a_finder_that_fails_refuses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.startswith("op_by_hook"):
                raise KeyError(name)

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert op_problem("op_by_hook:loss", "--op") is None
    written(folder, {"op": "import op_by_hook\ndef f(): ...\n"})
    assert op_problem("op:loss", "--op") is None


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("nsa.nsb.mode:loss", "a module that is there (did you mean mod?)"),
        ("nsa.nsb.mod:lose", "a name that mod.py holds"),
        ("pack.inner:loss", "inner.py:2: there is no package absent_one"),
        ("pack.inner:gone", "inner.py:2: there is no package absent_one"),
    ],
)
def test_what_no_code_can_change_is_still_refused(op: str, words: str, folder: Path) -> None:
    written(folder, {"nsa/nsb/mod": GOOD, "pack/__init__": "", "pack/inner": "import math\nimport absent_one\n"})
    assert words in str(op_problem(op, "--op"))


def test_a_local_star_or_comprehension_is_no_binding(folder: Path) -> None:
    op = written(folder, {"op": "import math\nx = [loss for loss in 'ab']\ndef two(): loss = 1\n"})
    assert "there is no loss in it" in str(op_problem(op, "--op"))
    with pytest.raises(InputError, match="no attribute 'loss'"):
        resolve(op, None, CONTRACT, "cpu")
