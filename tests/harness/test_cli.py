"""The command line: messages, statuses, streams, signals, and that the parent never loads torch."""

import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import harness.cli
from harness.own_ops.op_names import check_op
from harness.planning.planned import Plan
from harness.provenance.foreign_folders import PACKAGES, folders_of, foreign_folders
from harness.settings.devices import Machine, resolve_device
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig
from harness.stdio import MOST_COLUMNS, look_of
from loss_ops.registry import LOSS_OP
from reports import CaseResult, Layout, QuantityResult, Report, Verdict

ROOT = Path(harness.cli.__file__).resolve().parents[1]
MATCHED = Report.assemble(
    cases=[
        CaseResult(
            name="seed/s0/1x2",
            op="grpo_loss",
            layout=Layout(tp=1, dp=2),
            batch="seed",
            verdict=Verdict.MATCH,
            quantities=(QuantityResult(name="loss", verdict=Verdict.MATCH, elements=1, power=0.5),),
        )
    ]
)
CHILD = """
import builtins, sys, types
real = builtins.__import__
def guarded(name, *rest):
    assert name.partition(".")[0] != "torch", "torch was imported"
    return real(name, *rest)
builtins.__import__ = guarded
stand_in = types.ModuleType("harness.runs.run")
def run(plan, *, on_progress, **_):
    {body}
stand_in.run = run
sys.modules["harness.runs.run"] = stand_in
from harness.cli import main
status = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(status)
"""


def start(*tokens: str, cwd: Path, body: str = "raise AssertionError('launched')", **options: Any) -> Any:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRPO_VERIFY_")}
    environ = kept | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    command = [sys.executable, "-c", CHILD.format(body=body), *tokens]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen(command, cwd=cwd, env=environ, **pipes)


def finish(*tokens: str, cwd: Path, **options: Any) -> tuple[int, str, str]:
    process = start(*tokens, cwd=cwd, **options)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command in this process, in an empty folder; `run` stands in for the launch."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("GRPO_VERIFY_")]:
        monkeypatch.delenv(name)

    def called(*tokens: str, run: Callable[..., Report] | None = None) -> tuple[int, str, str]:
        stand_in: Any = types.ModuleType("harness.runs.run")
        stand_in.run = run or (lambda plan, **_: MATCHED)
        monkeypatch.setitem(sys.modules, "harness.runs.run", stand_in)
        status = harness.cli.main(tokens)
        return status, *capsys.readouterr()

    return called


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "report.json"
    path.write_text(MATCHED.to_json(), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("tokens", "status"),
    [
        (("--help",), 0),
        (("show", "--help"), 0),
        (("--version",), 0),
        (("config", "--tp", "2"), 0),
        (("show", "{saved}"), 0),
        (("--tpp", "3"), 2),
        (("--tp", "0", "--json"), 2),
        (("--batch", "gone.safetensors"), 2),
        (("--tp", "99", "--device", "cpu"), 2),
    ],
)
def test_the_parent_never_loads_torch(tmp_path: Path, saved: Path, tokens: tuple[str, ...], status: int) -> None:
    found, _, err = finish(*(token.format(saved=saved) for token in tokens), cwd=tmp_path)
    assert found == status, err
    assert "Traceback" not in err


def test_a_plan_is_made_without_torch(tmp_path: Path) -> None:
    body = "raise SystemExit(len(plan.cases) + 40)"
    assert finish("--tp", "2", "--batch", "seed", "--no-controls", cwd=tmp_path, body=body)[0] == 42


def test_run_gets_the_plan_and_its_report_is_rendered(call: Call, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def run(plan: Plan, *, on_progress: Callable[[str], None], **options: Any) -> Report:
        seen.update(options, plan=plan)
        on_progress("2 of 4 cases")
        return MATCHED

    status, out, err = call("run", "--dp", "2", "--out", "kept", "--device", "cpu", "--json", run=run)
    assert (status, err) == (0, "2 of 4 cases\n")
    assert Report.from_json(out) == MATCHED
    assert seen["out"] == Path("kept")
    assert seen["command"] == ("grpo-verify", "run", "--dp", "2", "--out", "kept", "--device", "cpu", "--json")
    assert [case.layout for case in seen["plan"].cases[:2]] == [(1, 1), (1, 2)]


def test_quiet_has_no_progress(call: Call) -> None:
    def run(plan: Plan, *, on_progress: Callable[[str], None], **_: Any) -> Report:
        on_progress("2 of 4 cases")
        return MATCHED

    assert call("--quiet", run=run)[2] == ""


@pytest.mark.parametrize("status", [0, 1, 2, 3, 4, 130, 143])
def test_the_exit_status_is_the_reports(call: Call, status: int) -> None:
    found, *_ = call(run=lambda plan, **_: MATCHED.model_copy(update={"exit_status": status}))
    assert found == status


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (("--tpp", "3"), "--tpp: expected a known flag (did you mean --tp?), got an unknown one"),
        (("--zzz",), "--zzz: expected a known flag (--help lists them), got an unknown one"),
        (
            ("--normaliser=x",),
            "--normaliser: expected a known flag (did you mean --normalizer?), got an unknown one",
        ),
        (
            ("shwo", "x"),
            "command line: expected a command (run, plan, show, config, ops, reveal, compare, snapshot, train) or "
            "a flag (did you mean show?), got 'shwo'",
        ),
        (("--tp",), "--tp: expected a value, got nothing"),
        (("--controls",), "--controls: expected a value, got nothing"),
        (("--tp", "1", "--tp", "2"), "--tp: expected one value, got the flag more than once"),
        (("--quiet=perhaps",), "--quiet: expected true or false, got 'perhaps'"),
        (("show",), "REPORT: expected a value, got nothing"),
        (("show", "x", "--width", "q"), "--width: expected an integer, got 'q'"),
        (("show", "x", "--width", "0"), "--width: expected at least 1, got 0"),
        (("show", "x", "--width", "1000000000"), "--width: expected at most 1000, got 1000000000"),
        (
            ("--layouts", "-1x2"),
            "--layouts: expected a value (one that begins with a hyphen is given as --layouts=-1x2)",
        ),
        (("train", "--dp", "1000000"), "--dp: expected at most 65536, got 1000000"),
        (("train", "--updates", "9" * 21), "--updates: expected at most 1000000, got 999"),
        (("reveal", "--layouts", "1x1", "--tp", "2"), "--layouts: expected nothing (--tp given), got 1x1"),
        (("show", "x", "--format", "pdf"), "--format: expected one of "),
        (("show", "x.json"), "x.json: expected a saved JSON report, got No such file or directory"),
        (("--tp", "x"), "--tp: expected an integer, got x"),
        (("--beta", "-1"), "--beta: expected at least 0, got -1.0"),
        (("--batch", "x.safetensors"), "x.safetensors: expected a capture file, got no such file"),
        (("--batch", "sed"), "--batch: expected one of long, long-1024, "),
    ],
)
def test_refusals(call: Call, tokens: tuple[str, ...], message: str) -> None:
    status, out, err = call(*tokens)
    assert (status, out) == (2, "")
    assert err.startswith(f"grpo-verify: invalid {'input' if 'capture file' in message else 'request'}: {message}")
    assert err.count("\n") == 1


def test_an_out_that_is_no_folder(call: Call, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    for out, shown in (("taken", "taken"), ("taken/below", tmp_path / "taken")):
        status, _, err = call("--out", out)
        assert status == 2
        assert err == (
            f"grpo-verify: invalid request: --out: expected a folder to write into, got {shown}, which is a file\n"
        )


def test_several_problems_are_one_message(call: Call) -> None:
    status, _, err = call("--tp", "0", "--beta", "-1")
    assert status == 2
    assert err == (
        "grpo-verify: invalid request (2 problems):\n"
        "  - --tp: expected at least 1, got 0\n"
        "  - --beta: expected at least 0, got -1.0\n"
    )


@pytest.mark.parametrize("tokens", [("--json",), ("--format", "json"), ("--format=json",)])
@pytest.mark.parametrize("wrong", [("--tp", "0"), ("--tpp", "3"), ("--batch", "gone.safetensors")])
def test_a_refusal_with_json_is_a_report_too(call: Call, tokens: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    status, out, err = call(*wrong, *tokens)
    report = Report.from_json(out)
    assert (status, report.exit_status, report.verdict) == (2, 2, "refused")
    assert report.command == ("grpo-verify", *wrong, *tokens)
    assert err.strip().endswith(report.errors[0].message)


def test_json_from_the_environment_holds_for_refusals(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_VERIFY_FORMAT", "json")
    assert Report.from_json(call("--tpp", "2")[1]).verdict == "refused"
    assert call("--format=terminal", "--tp", "0")[1] == ""


def test_show(call: Call, saved: Path) -> None:
    status, out, err = call("show", str(saved), "--width", "70")
    assert (status, err) == (0, "")
    assert out
    assert call("show", str(saved.parent), "--format", "json")[1] == MATCHED.to_json()


def test_show_refuses_what_is_no_report(call: Call, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}", encoding="utf-8")
    assert call("show", "x.json") == (
        2,
        "",
        "grpo-verify: not a valid report: schema_version: expected 1, got no such field; "
        "this is no grpo-verify report\n",
    )
    (tmp_path / "x.json").write_bytes(b"\xff\xfe")
    assert call("show", "x.json")[2].endswith("expected a saved JSON report, got bytes that are not UTF-8\n")


def test_config_lists_values_and_sources(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.grpo-verify]\nbeta = 0.1\n", encoding="utf-8")
    monkeypatch.setenv("GRPO_VERIFY_REPEAT", "3")
    status, out, _ = call("config", "--tp", "2", "--json")
    content = json.loads(out)
    assert status == 0
    assert content["tp"] == {"value": 2, "source": "--tp"}
    assert content["repeat"] == {"value": 3, "source": "GRPO_VERIFY_REPEAT"}
    assert content["beta"] == {"value": 0.1, "source": "pyproject.toml:tool.grpo-verify.beta"}
    assert content["dp"] == {"value": None, "source": "default"}


def test_ops(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in: Any = types.ModuleType("loss_ops")
    rows = [
        {"op": "grpo_loss", "backend": "native", "status": "available"},
        {"op": LOSS_OP, "backend": "triton", "status": "no CUDA device"},
        {"op": LOSS_OP, "backend": "native", "status": "available"},
    ]
    stand_in.kernel_registry = types.SimpleNamespace(describe=lambda device: rows)
    monkeypatch.setitem(sys.modules, "loss_ops", stand_in)
    assert call("ops")[1].splitlines() == [
        "--op grpo_loss  the first of these that is available",
        "--op triton     not available: no CUDA device",
        "--op native     available",
        "",
        "In Python alone, as kernel_registry.get_op(NAME, BACKEND):",
        "grpo_loss  native  available",
    ]


def test_what_ops_lists_for_op_is_what_op_takes(call: Call) -> None:
    lines = [line for line in call("ops")[1].splitlines() if line.startswith("--op ")]
    names = [line.split()[1] for line in lines]
    for name in names:
        check_op(RunConfig(op=name))
    with pytest.raises(RequestError, match=f"expected one of {', '.join(names)}, or package.module:attribute"):
        check_op(RunConfig(op="ratio_kl"))
    help_of_reveal = " ".join(call("reveal", "--help")[1].replace("│", " ").split())
    assert f"{names[0]}, a backend of it ({', '.join(sorted(names[1:]))})" in help_of_reveal


@pytest.mark.parametrize("command", ["train", "reveal", "compare", "show", "ops"])
def test_help_names_settings_files_only_where_they_are_read(call: Call, command: str) -> None:
    text = " ".join(call(command, "--help")[1].split())
    assert "pyproject" not in text
    assert "Takes its settings from the command line alone. Exit status: 0 proven" in text
    for reading in ("plan", "config"):
        assert "GRPO_VERIFY_*" in call(reading, "--help")[1]


def test_help_of_train_shows_choices(call: Call) -> None:
    text = " ".join(call("train", "--help")[1].replace("│", " ").split())
    for choices in (
        "(tiny, language-model)",
        "(fixed_order, all_reduce)",
        "(auto, cpu, cuda)",
        "(uniform, vigor)",
    ):
        assert choices in text
    assert "global_active_tokens" in text


def _raise(error: BaseException) -> Callable[..., Report]:
    def run(plan: Plan, **_: Any) -> Report:
        raise error

    return run


def test_an_internal_error_is_one_line_and_a_file(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status, out, err = call(run=_raise(KeyError("lost\nsecond line")))
    assert (status, out, err.count("\n")) == (4, "", 1)
    assert err.startswith("grpo-verify: internal error: KeyError: ")
    (kept,) = tmp_path.glob("*.traceback.txt")
    assert str(kept) in err
    assert "Traceback" in kept.read_text(encoding="utf-8")


def test_debug_shows_the_traceback(call: Call) -> None:
    status, _, err = call("--debug", run=_raise(KeyError("lost")))
    assert status == 4
    assert err.startswith("Traceback")
    assert err.endswith("grpo-verify: internal error: KeyError: 'lost'\n")


def test_an_internal_error_with_json_is_a_report_too(call: Call) -> None:
    report = Report.from_json(call("--json", run=_raise(KeyError("lost")))[1])
    assert (report.exit_status, report.verdict) == (4, "failed")
    assert report.notes == ("internal error: KeyError: 'lost'",)


def test_an_error_of_the_request_found_by_the_run_is_a_refusal(call: Call) -> None:
    status, _, err = call(run=_raise(RequestError("invalid request: the folder is taken")))
    assert (status, err) == (2, "grpo-verify: invalid request: the folder is taken\n")


def test_interrupt_in_this_process(call: Call) -> None:
    assert call(run=_raise(KeyboardInterrupt())) == (130, "", "grpo-verify: interrupted\n")


ENDINGS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.mark.parametrize(("number", "status"), ENDINGS)
def test_signals_end_it_without_a_traceback(tmp_path: Path, number: signal.Signals, status: int) -> None:
    body = "import time; on_progress('waiting'); time.sleep(60)"
    process = start("--batch", "seed", "--device", "cpu", cwd=tmp_path, body=body)
    assert process.stderr.readline() == "waiting\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert "Traceback" not in err


FINISHED = (
    "import time; from harness.system.signals import finish_first; finish_first(); on_progress('waiting');"
    " time.sleep({}); from reports import Report; return Report.assemble(cases=[], notes=['x' * 300_000])"
)


def test_a_hangup_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    process = start(
        *("--batch", "seed", "--device", "cpu"),
        cwd=tmp_path,
        body=FINISHED.format(0.5),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert process.stderr.readline() == "waiting\n"
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=30)
    assert process.returncode == 3


def test_a_terminal_that_closes_twice_loses_no_result(tmp_path: Path) -> None:
    process = start("--batch", "seed", "--device", "cpu", "--json", cwd=tmp_path, body=FINISHED.format(0.6))
    assert process.stderr.readline() == "waiting\n"
    for _ in range(2):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, json.loads(out)["notes"]) == (3, ["x" * 300_000])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_result_is_written_whole_when_a_signal_comes_after_the_run(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = start("--batch", "seed", "--device", "cpu", "--json", cwd=tmp_path, body=FINISHED.format(0.2))
    assert process.stderr.readline() == "waiting\n"
    process.send_signal(number)
    time.sleep(0.7)  # by now it writes more than a pipe holds, and nobody reads
    out, err = process.communicate(timeout=30)
    assert json.loads(out)["notes"] == ["x" * 300_000]
    assert (process.returncode, err) == (3, "")


@pytest.mark.parametrize(("signals", "status"), [((signal.SIGTERM,), 143), ((signal.SIGTERM, signal.SIGINT), 130)])
def test_a_result_that_nobody_takes_holds_nobody_up(
    tmp_path: Path, signals: tuple[signal.Signals, ...], status: int
) -> None:
    process = start("--batch", "seed", "--device", "cpu", cwd=tmp_path, body=FINISHED.format(60))
    assert process.stderr.readline() == "waiting\n"
    for number in signals:
        process.send_signal(number)
        time.sleep(0.5)
    process.communicate(timeout=30)
    assert process.returncode == status


LATE = """
import os, signal, sys
class Late:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), {number})
            except {lost}:
                raise ValueError("a validator failed")
sys.meta_path.insert(0, Late())
from harness.cli import main
sys.exit(main(["--help"]))
"""


@pytest.mark.parametrize("module", ["harness.command_line", "harness.system.signals", "cyclopts"])
def test_an_interrupt_while_it_still_imports(module: str) -> None:
    code = LATE.format(module=module, number=int(signal.SIGINT), lost="ZeroDivisionError")
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, b"grpo-verify: interrupted\n")


@pytest.mark.parametrize(("number", "status"), ENDINGS)
def test_a_signal_whose_exception_is_wrapped_ends_it_all_the_same(number: signal.Signals, status: int) -> None:
    """Native code that calls back into Python makes other exceptions of those that it meets."""
    code = LATE.format(module="cyclopts", number=int(number), lost="BaseException")
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count(b"\n")) == (status, 1)


@pytest.mark.parametrize("delay", [0.1, 0.15, 0.2, 0.3])
def test_a_signal_at_any_moment_of_the_start_is_no_error(tmp_path: Path, delay: float) -> None:
    """Before handlers are in place the signal itself ends the process."""
    process = start("--dry-run", "--batch", "seed", "--device", "cpu", cwd=tmp_path)
    time.sleep(delay)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode in (0, 143, -signal.SIGTERM)
    assert err in ("", "grpo-verify: terminated\n")


def test_a_broken_installation_is_one_line(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pydantic'] = None; import harness.cli; sys.exit(harness.cli.main(['config']))"
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith("grpo-verify: internal error: ModuleNotFoundError: import of pydantic halted")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_left(tmp_path: Path) -> None:
    read, writing = os.pipe()
    os.close(read)
    status, _, err = finish("config", cwd=tmp_path, stdout=writing)
    os.close(writing)
    assert (status, err) == (0, "")


@pytest.mark.parametrize("tokens", [("config",), ("--help",), ("--tpp", "3", "--json")])
def test_closed_streams(tmp_path: Path, tokens: tuple[str, ...]) -> None:
    script = f'exec "$0" -m harness.cli {" ".join(tokens)} >&- 2>&-'
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", script, sys.executable], cwd=tmp_path, env=environ, timeout=60, check=False)
    assert done.returncode == (2 if "--tpp" in tokens else 4), "a status without its answer would pass for one"


@pytest.mark.parametrize(("out", "status"), [("None", 4), ("Path('kept')", 0)])
def test_no_stdout_is_told_unless_the_report_is_kept(tmp_path: Path, out: str, status: int) -> None:
    body = f"from pathlib import Path; from reports import Report; assert str(_['out']) == str({out})\n"
    body += "    return Report.from_json(Path('saved.json').read_text())"
    (tmp_path / "saved.json").write_text(MATCHED.to_json())
    flags = [] if status else ["--out", "kept"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$@" >&-', sys.executable, CHILD.format(body=body), "--batch", "seed", *flags],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    told = "grpo-verify: stdout cannot be written: Bad file descriptor\n" if status else ""
    assert (done.returncode, done.stderr) == (status, told)


def test_an_encoding_without_the_letters(tmp_path: Path) -> None:
    status, out, _ = finish("config", "--out", "größe", cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert status == 0
    assert "gr\\xf6\\xdfe" in out


def test_version_is_that_of_the_project(call: Call) -> None:
    assert call("--version")[1].strip() in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_our_own_folders_pass() -> None:
    assert foreign_folders() == []
    assert all(folders_of(name) == [ROOT / name] for name in PACKAGES)


@pytest.mark.parametrize("place", ["reports/__init__.py", "reports.py", "grpo_contract/__init__.py"])
def test_a_foreign_folder_that_comes_first_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    # As in a project that puts its own folder first: ours is found for one name, and theirs for another.
    code = "import sys, harness.cli; sys.path.insert(0, sys.argv[1]); sys.exit(harness.cli.main(['--help']))"
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    name, foreign = place.partition("/")[0].removesuffix(".py"), tmp_path / place.removesuffix("/__init__.py")
    assert done.returncode == 2
    assert done.stderr == (
        f"grpo-verify: invalid request: package {name}: expected the folder {ROOT / name}, "
        f"got {foreign} (earlier on the import path; start from another folder)\n"
    )


@pytest.mark.parametrize(
    ("asked", "devices", "built", "expected"),
    [
        ("auto", 0, False, ("cpu", None)),
        ("auto", 0, True, ("cpu", None)),
        ("auto", 2, True, ("cuda", 2)),
        ("cpu", 2, True, ("cpu", None)),
        ("cuda", 1, True, ("cuda", 1)),
    ],
)
def test_devices(asked: str, devices: int, built: bool, expected: tuple[str, int | None]) -> None:
    assert resolve_device(RunConfig(device=asked), Machine(4, devices, built)) == expected


def test_cuda_that_is_not_there() -> None:
    with pytest.raises(RequestError, match=r"--device: expected a CUDA device, got none \(no CUDA device found\)"):
        resolve_device(RunConfig(device="cuda"), Machine(4, 0, True))
    with pytest.raises(RequestError, match="torch is built without CUDA"):
        resolve_device(RunConfig(device="cuda"), Machine(4, 0, False))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("tokens", [("show", "{saved}"), ("show", "{saved}", "--format", "json")])
def test_a_stdout_without_room_is_one_line_and_broken(
    tmp_path: Path, saved: Path, tokens: tuple[str, ...]
) -> None:
    with open("/dev/full", "w") as full:
        status, _, err = finish(*(token.format(saved=saved) for token in tokens), cwd=tmp_path, stdout=full)
    assert (status, err) == (4, "grpo-verify: stdout cannot be written: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_refusal_outlives_streams_without_room(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        status, _, err = finish("--tp", "0", "--json", cwd=tmp_path, stdout=full)
        assert (status, err.count("\n")) == (2, 1)
        assert finish("--tp", "0", "--json", cwd=tmp_path, stderr=full)[0] == 2


@pytest.mark.parametrize("tokens", [("-",), ("-", "--quiet"), ("--quiet", "-"), ("--", "-")])
def test_show_reads_standard_input(tmp_path: Path, saved: Path, tokens: tuple[str, ...]) -> None:
    with saved.open() as report:
        status, out, err = finish("show", *tokens, cwd=tmp_path, stdin=report)
    assert (status, err) == (0, "")
    assert out


@pytest.mark.parametrize(
    "tokens", [("show", "--bogus"), ("show", "{saved}", "--bogus"), ("show", "--bogus", "{saved}")]
)
def test_show_refuses_unknown_flags(call: Call, saved: Path, tokens: tuple[str, ...]) -> None:
    status, out, err = call(*(token.format(saved=saved) for token in tokens))
    assert (status, out) == (2, "")
    assert "--bogus: expected a known flag" in err


def test_columns_of_the_environment_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000000000")
    assert look_of(sys.stdout)["width"] == MOST_COLUMNS


@pytest.mark.parametrize("tokens", [("show", "pipe.json"), ("compare", "pipe.json", "pipe.json")])
def test_a_pipe_is_no_report(call: Call, tmp_path: Path, tokens: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    status, _, err = call(*tokens)
    assert (status, "got a named pipe" in err) == (2, True)


@pytest.mark.parametrize(
    ("out", "got"),
    [
        ("/proc/x", "/proc"),
        ("a" * 300, f"{'a' * 40}...{'a' * 20}: File name too long"),
        ("foreign", "foreign, whose report.json is no report of grpo-verify"),
        ("foreign/report.json", "foreign/report.json, which is a file"),
    ],
)
@pytest.mark.parametrize("command", [(), ("train",), ("plan", "--tp", "2")])
def test_a_folder_that_cannot_keep_a_report(
    call: Call, tmp_path: Path, command: tuple[str, ...], out: str, got: str
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "report.json").write_text('{"mine": 1}')
    status, _, err = call(*command, "--out", out)
    told = f"grpo-verify: invalid request: --out: expected a folder to write into, got {got}"
    assert (status, err[: len(told)]) == (2, told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign"]


def test_no_folder_named_nothing(call: Call) -> None:
    for tokens in (("--out", ""), ("--resume", ""), ("train", "--out", ""), ("show", "x", "--out", "")):
        status, _, err = call(*tokens)
        assert (status, "expected a path, got ''" in err) == (2, True)


@pytest.mark.parametrize(
    "tokens", [("--dry-run",), ("config",), ("reveal",), ("train",), ("snapshot", "check", "x")]
)
def test_a_current_folder_that_is_gone(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: tuple[str, ...]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    status, _, err = call(*tokens)
    assert status == 2
    assert err.endswith("current folder: expected a folder that is there, got No such file or directory\n")
