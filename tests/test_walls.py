"""The walls between the packages, each seen from a fresh process, and the whole of them by import-linter."""

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_contract
import reports

ROOT = Path(grpo_contract.__file__).resolve().parents[1]
BLOCKING = """
import builtins, importlib, json, sys
blocked = set(json.loads(sys.argv[1]))
real = builtins.__import__
def guarded(name, *rest, **more):
    if name.partition(".")[0] in blocked:
        raise AssertionError(f"{name} was imported")
    return real(name, *rest, **more)
builtins.__import__ = guarded
for name in json.loads(sys.argv[2]):
    importlib.import_module(name)
print(json.dumps(sorted(sys.modules)))
"""
RENDERING = (
    "reports.terminal",
    "reports.html",
    "reports.junit",
    "reports.github",
    "reports.markdown",
    "reports.sarif",
)


def fresh(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A new process that sees the checkout and nothing of this one."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("GRPO_VERIFY_", "PYTEST"))
    }
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(
        command, env=environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )


def loaded(modules: list[str], *, blocked: tuple[str, ...] = ()) -> set[str]:
    """What a fresh process holds after importing `modules`; fails when one of them asks for a blocked package."""
    done = fresh(BLOCKING, json.dumps(blocked), json.dumps(modules))
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def roots(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def all_of(package: str) -> list[str]:
    """Every module of a package, by its files."""
    folder = ROOT / package
    return [package, *(each.name for each in pkgutil.walk_packages([str(folder)], f"{package}."))]


def test_the_contract_needs_no_torch() -> None:
    modules = all_of("grpo_contract")
    assert len(modules) > 8
    held = loaded(modules, blocked=("torch", "numpy", "triton", "rich", "cyclopts", "safetensors"))
    assert "pydantic" in held
    assert not roots(held) & {"loss_ops", "harness", "reports"}


def test_reports_need_no_torch_and_no_ops() -> None:
    modules = all_of("reports")
    assert set(RENDERING) <= set(modules)
    held = loaded(modules, blocked=("torch", "numpy", "triton", "cyclopts", "safetensors"))
    assert not roots(held) & {"loss_ops", "harness"}


def test_a_saved_report_renders_without_torch() -> None:
    script = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None
from reports import RENDERERS, Report, render
report = Report.from_json(open(sys.argv[1], encoding="utf-8").read())
print(all(render(report, name) for name in RENDERERS))
"""
    done = fresh(script, str(ROOT / "tests" / "reports" / "data" / "report-v1.json"))
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_the_report_model_loads_no_renderer() -> None:
    held = loaded(["reports"], blocked=("torch", "rich", "jinja2"))
    assert not held & set(RENDERING)
    assert reports.RENDERERS.keys() >= {"terminal", "json"}


def test_ops_are_listed_without_torch() -> None:
    held = loaded(
        ["loss_ops", "loss_ops.registry", "loss_ops.faults"], blocked=("torch", "triton", "numpy", "rich")
    )
    assert not roots(held) & {"harness", "reports"}


def test_ops_know_neither_harness_nor_reports() -> None:
    modules = [name for name in all_of("loss_ops") if "triton" not in name]
    held = loaded(modules, blocked=("rich", "cyclopts", "triton"))
    assert "torch" in held
    assert not roots(held) & {"harness", "reports"}


def test_a_worker_starts_without_torch() -> None:
    held = loaded(["harness.worker"], blocked=("torch", "rich", "cyclopts"))
    assert "reports" not in held


def test_what_a_worker_runs_renders_nothing() -> None:
    held = loaded(["harness.worker", "harness.ranks.rank_run"], blocked=("rich", "cyclopts", "jinja2"))
    assert "torch" in held
    assert not held & set(RENDERING)
    assert not held & {
        "harness.cli",
        "harness.commands",
        "harness.runs.run",
        "harness.launching.launch",
        "harness.settings.run_config",
    }


def test_the_parent_never_loads_torch_and_starts_without_numpy() -> None:
    modules = [
        "harness.cli",
        "harness.commands",
        "harness.runs.request",
        "harness.runs.run",
        "harness.planning.plan",
        "harness.launching.launch",
    ]
    held = loaded(modules, blocked=("torch", "triton", "numpy"))
    assert set(modules) <= held  # and with torch blocked, importing it would have raised


@pytest.mark.parametrize("module", ["harness.ranks.batches", "harness.comparing.comparison"])
def test_the_check_can_fail(module: str) -> None:
    """These need torch, and a process that must not have it says so."""
    done = fresh(BLOCKING, json.dumps(["torch"]), json.dumps([module]))
    assert done.returncode == 1
    assert "AssertionError: torch was imported" in done.stderr


@pytest.mark.parametrize(
    ("package", "foreign"),
    [("grpo_contract", "harness"), ("reports", "loss_ops"), ("loss_ops", "reports"), ("loss_ops", "harness")],
)
def test_no_source_names_a_package_above(package: str, foreign: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert f"import {foreign}" not in text, path
        assert f"from {foreign}" not in text, path


def test_import_linter_keeps_all_contracts() -> None:
    script = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script, "--no-cache"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 kept, 0 broken" in done.stdout
