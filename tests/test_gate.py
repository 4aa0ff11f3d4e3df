"""The action and the hooks: valid YAML, and a script that reports what the command said."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
STUB = """#!{python}
import pathlib, sys
open("arguments.txt", "w").write("\\n".join(sys.argv[1:]))
status, verdict, out = {status}, "{verdict}", pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
if verdict:
    out.mkdir(exist_ok=True)
    (out / "report.json").write_text('{{"verdict": "%s"}}' % verdict)
    for name in ("report.html", "report.junit.xml"):
        (out / name).write_text("")
print("## a summary")
sys.exit(status)
"""


def loaded(name: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the dev extra")
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.fixture
def action() -> dict[str, Any]:
    return loaded("action.yml")


def step(action: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in action["runs"]["steps"] if each["name"] == name)


def test_the_action_has_what_github_asks_for(action: dict[str, Any]) -> None:
    assert action["runs"]["using"] == "composite"
    assert all(each["description"] for each in (*action["inputs"].values(), *action["outputs"].values()))
    assert {"exit-status", "verdict", "report"} <= action["outputs"].keys()
    assert all(each["shell"] == "bash" for each in action["runs"]["steps"])


def test_no_input_is_pasted_into_a_script(action: dict[str, Any]) -> None:
    assert all("${{" not in each["run"] for each in action["runs"]["steps"])


def test_every_input_is_used(action: dict[str, Any]) -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert [name for name in action["inputs"] if f"inputs.{name} " not in text] == []


def verify(action: dict[str, Any], folder: Path, status: int, verdict: str, **inputs: str) -> dict[str, str]:
    """Run the step as the runner does, with a stub for the command; return its outputs."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    stub = commands / "grpo-verify"
    stub.write_text(STUB.format(python=sys.executable, status=status, verdict=verdict))
    stub.chmod(0o755)
    (commands / "python").unlink(missing_ok=True)
    (commands / "python").symlink_to(sys.executable)
    found = step(action, "Verify")
    environment = {
        **{name: inputs.get(name, "") for name in found["env"]},
        "OUT": "out",
        "PATH": f"{commands}:{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(folder / "outputs"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
    }
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", found["run"]]
    subprocess.run(shell, cwd=folder, env=environment, check=True, capture_output=True)
    lines = (folder / "outputs").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


@needs_bash
@pytest.mark.parametrize(("status", "verdict"), [(0, "match"), (1, "drift"), (3, "inconclusive"), (4, "failed")])
def test_outputs_tell_how_it_ended(action: dict[str, Any], tmp_path: Path, status: int, verdict: str) -> None:
    outputs = verify(
        action, tmp_path, status, verdict, TP="2", DP="4", OP="kernels.mine:Loss", ARGUMENTS="--repeat 3"
    )
    assert outputs == {
        "exit-status": str(status),
        "verdict": verdict,
        "report": str(tmp_path / "out" / "report.json"),
        "html": str(tmp_path / "out" / "report.html"),
        "junit": str(tmp_path / "out" / "report.junit.xml"),
    }
    assert (tmp_path / "summary").read_text() == "## a summary\n"
    arguments = (tmp_path / "arguments.txt").read_text().split("\n")
    assert arguments[4:] == ["--op", "kernels.mine:Loss", "--tp", "2", "--dp", "4", "--repeat", "3"]


@needs_bash
def test_a_refusal_leaves_no_stale_report(action: dict[str, Any], tmp_path: Path) -> None:
    verify(action, tmp_path, 0, "match")
    (tmp_path / "outputs").unlink()
    assert verify(action, tmp_path, 2, "") == {"exit-status": "2", "verdict": "refused"}


@needs_bash
def test_inputs_are_words_and_not_commands(action: dict[str, Any], tmp_path: Path) -> None:
    verify(action, tmp_path, 0, "match", BATCH="$(touch pwned); a b", ARGUMENTS="--seed `touch pwned` ; ls")
    assert not (tmp_path / "pwned").exists()
    assert "$(touch pwned); a b" in (tmp_path / "arguments.txt").read_text().split("\n")


def test_the_examples_of_the_documentation_are_valid(action: dict[str, Any]) -> None:
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    assert len(blocks) == 5
    used = re.findall(r"uses: OWNER/grpo-verify@REF\n +with:\n((?: {10}.*\n)+)", text)
    names = {line.split(":")[0].strip() for block in used for line in block.splitlines()}
    assert names
    assert names <= action["inputs"].keys()


def test_hooks() -> None:
    (hook,) = loaded(".pre-commit-hooks.yaml")
    assert hook["entry"].split()[0] == "grpo-verify"
    assert hook["pass_filenames"] is False
    assert hook["stages"] == ["pre-push", "manual"]
