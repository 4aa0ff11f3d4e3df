"""Settings: precedence, where values come from, and messages that name all problems at their place."""

import os
from pathlib import Path
from typing import Any

import pytest

from grpo_contract import KLEstimator, LogitsDtype, TokenNormalizer
from harness.planning.listings import settings_text
from harness.settings.config_sources import load_config
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig


def load(tmp_path: Path, environ: dict[str, str] | None = None, toml: str = "", **flags: object) -> RunConfig:
    if toml:
        (tmp_path / "pyproject.toml").write_text(f"[tool.grpo-verify]\n{toml}", encoding="utf-8")
    return load_config(flags, environ or {}, tmp_path)


def problems_of(
    tmp_path: Path, environ: dict[str, str] | None = None, toml: str = "", **flags: object
) -> list[str]:
    with pytest.raises(RequestError) as caught:
        load(tmp_path, environ, toml, **flags)
    return [str(problem) for problem in caught.value.problems]


def test_defaults() -> None:
    config = RunConfig()
    assert (config.tp, config.dp, config.layouts, config.op) == (None, None, (), "grpo_loss")
    assert (config.batch, config.seed, config.controls) == (("seed", "long"), (0,), "on")
    assert (config.dtype, config.repeat, config.timeout) == (LogitsDtype.FLOAT32, 2, 120.0)
    assert (config.format, config.quiet, config.color, config.device) == ("terminal", False, "auto", "auto")
    assert config.contract_fields() == {}


def test_flag_over_environment_over_pyproject_over_default(tmp_path: Path) -> None:
    toml = "beta = 0.1\nalpha = 0.5\nnormalizer = 'length_power'\nrepeat = 5\n"
    environ = {"GRPO_VERIFY_BETA": "0.2", "GRPO_VERIFY_REPEAT": "4"}
    config = load(tmp_path, environ, toml, beta="0.3")
    assert (config.beta, config.repeat, config.alpha, config.timeout) == (0.3, 4, 0.5, 120.0)
    assert config.where("beta") == "--beta"
    assert config.where("repeat") == "GRPO_VERIFY_REPEAT"
    assert config.where("alpha") == "pyproject.toml:tool.grpo-verify.alpha"
    assert not config.is_given("timeout")


def test_lists_are_repeated_flags_or_commas_without_repeats(tmp_path: Path) -> None:
    config = load(tmp_path, seed=("2", "1,2"), layouts=("4X1, 1x4",), batch=("seed,long", "seed"))
    assert config.seed == (2, 1)
    assert config.layouts == ("4x1", "1x4")
    assert config.chosen_layouts == ((4, 1), (1, 4))
    assert config.batch == ("seed", "long")


def test_toml_types_and_kebab_case(tmp_path: Path) -> None:
    config = load(tmp_path, toml="seed = [3, 4]\nfixed-constant = 64\nnormalizer = 'fixed_constant'\nkl = 'k1'\n")
    assert config.seed == (3, 4)
    assert config.contract_fields() == {
        "token_normalizer": TokenNormalizer.FIXED_CONSTANT,
        "fixed_constant": 64.0,
        "kl_estimator": KLEstimator.K1,
    }


def test_paths_of_a_file_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.grpo-verify]\nout = 'reports'\nbatch = ['seed', 'data/x.safetensors']\n", encoding="utf-8"
    )
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    config = load_config({}, {}, below)
    assert config.out == tmp_path / "reports"
    assert config.batch == ("seed", str(tmp_path / "data" / "x.safetensors"))
    assert config.where("out") == "../../pyproject.toml:tool.grpo-verify.out"


@pytest.mark.parametrize(
    ("flags", "environ", "toml", "controls"),
    [
        ({}, {}, "", "on"),
        ({"no_controls": True}, {}, "", "off"),
        ({"controls": "batch"}, {"GRPO_VERIFY_NO_CONTROLS": "1"}, "", "batch"),
        ({}, {"GRPO_VERIFY_CONTROLS": "off"}, "controls = 'batch'\n", "off"),
        ({}, {}, "controls = false\n", "off"),
        ({"no_controls": True}, {}, "controls = true\n", "off"),
        ({"no_controls": True, "controls": "off"}, {}, "", "off"),
    ],
)
def test_controls(
    tmp_path: Path, flags: dict[str, object], environ: dict[str, str], toml: str, controls: str
) -> None:
    assert load(tmp_path, environ, toml, **flags).controls == controls


def test_json_is_a_format(tmp_path: Path) -> None:
    assert load(tmp_path, json=True).format == "json"
    assert load(tmp_path, {"GRPO_VERIFY_JSON": "1"}).format == "json"
    assert load(tmp_path, {"GRPO_VERIFY_JSON": "1"}, format="terminal").format == "terminal"
    assert problems_of(tmp_path, json=True, format="terminal") == [
        "--format: expected json or nothing (--json is given), got terminal"
    ]


def test_no_controls_against_controls(tmp_path: Path) -> None:
    assert problems_of(tmp_path, no_controls=True, controls="batch") == [
        "--controls: expected off or nothing (--no-controls is given), got batch"
    ]


def test_a_stronger_source_replaces_what_belongs_together(tmp_path: Path) -> None:
    config = load(tmp_path, {"GRPO_VERIFY_TP": "4", "GRPO_VERIFY_DP": "2"}, layouts=("1x3",))
    assert (config.tp, config.dp, config.layouts) == (None, None, ("1x3",))
    config = load(tmp_path, {"GRPO_VERIFY_LAYOUTS": "1x3"}, tp="2")
    assert (config.tp, config.layouts) == (2, ())
    toml = "normalizer = 'fixed_constant'\nfixed-constant = 8\n"
    config = load(tmp_path, {}, toml, normalizer="length_power", alpha="1")
    assert config.contract_fields() == {"token_normalizer": TokenNormalizer.LENGTH_POWER, "alpha": 1.0}


def test_every_problem_at_once_each_at_its_place(tmp_path: Path) -> None:
    found = problems_of(
        tmp_path,
        {"GRPO_VERIFY_SEED": "0,-1", "GRPO_VERIFY_BETTA": "1"},
        "timeout = -3\ncolour = 'always'\n",
        tp="x",
        dtype="fp8",
        layouts=("2x0",),
        normalizer="length_power",
        clip_eps_low="2",
        op="a.b",
    )
    assert found == [
        "pyproject.toml:tool.grpo-verify.colour: expected a known setting (did you mean color?), "
        "got an unknown one",
        "GRPO_VERIFY_BETTA: expected a known variable (did you mean GRPO_VERIFY_BETA?), got an unknown one",
        "--tp: expected an integer, got x",
        "--layouts: expected layouts written TxD, such as 4x1 "
        "(TP degree x DP degree, both from 1 to 65536), got 2x0",
        "--op: expected a registered name, such as grpo_loss, or package.module:attribute, got a.b",
        "--dtype: expected one of float16, bfloat16, float32, got fp8",
        "GRPO_VERIFY_SEED: expected at least 0, got -1",
        "pyproject.toml:tool.grpo-verify.timeout: expected a number above 0, got -3",
        "--alpha: expected a number (token_normalizer is length_power), got nothing",
        "--clip-eps-low: expected at most 1 (a ratio is never negative), got 2.0",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tp": "0"}, "--tp: expected at least 1, got 0"),
        ({"tp": "9" * 30}, "--tp: expected at most 65536, got 999"),
        ({"layouts": ("1x" + "9" * 9,)}, "--layouts: expected layouts written TxD"),
        ({"tp": "1.5"}, "--tp: expected an integer, got 1.5"),
        ({"tp": ""}, "--tp: expected an integer, got ''"),
        ({"repeat": "0"}, "--repeat: expected at least 1, got 0"),
        ({"repeat": "99999999999"}, "--repeat: expected at most 1000000, got 99999999999"),
        ({"timeout": "1e300"}, "--timeout: expected at most 1000000, got 1e300"),
        (
            {"layouts": ("65537x1",)},
            "--layouts: expected layouts written TxD, such as 4x1 (TP degree x DP degree, both ",
        ),
        ({"sweep": ("seq_len=9999999999",)}, "--sweep: expected default, seq_len=N,... (N from 1 to 1048576)"),
        ({"sweep": ("seq_len=\N{SUPERSCRIPT TWO}",)}, "--sweep: expected default, seq_len=N,..."),
        ({"std_eps": "1e308"}, "--std-eps: expected at most 3.4028235e+38 (the largest float32), got 1e+308"),
        (
            {"clip_eps_high": "1e308"},
            "--clip-eps-high: expected at most 3.4028235e+38 (the largest float32), got ",
        ),
        (
            {"temperature": "5e-324"},
            "--temperature: expected at least 1.1754944e-38 (the smallest normal float32), ",
        ),
        (
            {"temperature": "1e38"},
            "--temperature: expected at most 8.5070592e+37 (its reciprocal is a normal float32)",
        ),
        ({"op": "\udcff"}, "--op: expected text in UTF-8, got '\\xff'"),
        ({"timeout": "inf"}, "--timeout: expected a finite number, got inf"),
        ({"temperature": "nan"}, "--temperature: expected a finite number, got nan"),
        ({"temperature": "0"}, "--temperature: expected a number above 0, got 0.0"),
        ({"beta": "-1"}, "--beta: expected at least 0, got -1.0"),
        ({"kl": "k4"}, "--kl: expected one of k1, k2, k3, got k4"),
        ({"format": "pdf"}, "--format: expected one of "),
        ({"controls": "maybe"}, "--controls: expected one of on, off, batch, matrix, got maybe"),
        ({"batch": ("",)}, "--batch: expected text that is not empty, got ''"),
        ({"seed": ("4294967296",)}, "--seed: expected at most 4294967295, got 4294967296"),
        (
            {"alpha": "1"},
            "--alpha: expected nothing (it belongs to length_power; token_normalizer is global_active_tokens), "
            "got 1.0",
        ),
        ({"layouts": ("1x2",), "tp": "2"}, "--layouts: expected nothing (--tp given), got 1x2"),
        ({"json": "perhaps"}, "--json: expected true or false, got perhaps"),
    ],
)
def test_messages(tmp_path: Path, flags: dict[str, object], message: str) -> None:
    (found,) = problems_of(tmp_path, **flags)
    assert found.startswith(message)


def test_a_refused_normalizer_says_nothing_of_its_fields(tmp_path: Path) -> None:
    assert len(problems_of(tmp_path, normalizer="token_mean", alpha="1")) == 1


def test_python_construction_has_the_same_errors() -> None:
    with pytest.raises(RequestError, match=r"invalid request: --tp: expected at least 1, got 0"):
        RunConfig(tp=0)
    with pytest.raises(RequestError, match="tpp: expected no such setting, got 2"):
        RunConfig(tpp=2)


def test_toml_booleans_are_no_numbers(tmp_path: Path) -> None:
    assert problems_of(tmp_path, toml="tp = true\n") == [
        "pyproject.toml:tool.grpo-verify.tp: expected an integer, got true"
    ]


def test_unreadable_or_odd_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.grpo-verify\n", encoding="utf-8")
    (found,) = problems_of(tmp_path)
    assert found.startswith(f"{tmp_path / 'pyproject.toml'}: expected a readable TOML file, got ")
    (tmp_path / "pyproject.toml").write_text("[tool]\ngrpo-verify = 3\n", encoding="utf-8")
    (found,) = problems_of(tmp_path)
    assert found.endswith(":tool.grpo-verify: expected a table, got 3")


def test_foreign_variables_and_empty_ones_are_left_alone(tmp_path: Path) -> None:
    environ = {"GRPO_VERIFY_LAUNCHER_PID": "7", "GRPO_VERIFY_TP": "", "OTHER_BETA": "1"}
    assert load(tmp_path, environ) == RunConfig()


def test_listing_shows_values_and_sources(tmp_path: Path) -> None:
    lines = settings_text(load(tmp_path, {"GRPO_VERIFY_SEED": "1,2"}, tp="2", no_controls=True)).splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["tp"] == ["2", "--tp"]
    assert rows["dp"] == ["-", "default"]
    assert rows["seed"] == ["1,2", "GRPO_VERIFY_SEED"]
    assert rows["controls"] == ["off", "--no-controls"]
    assert rows.keys() == RunConfig.model_fields.keys()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tool = 3\n", ":tool: expected a table, got 3"),
        ("tool = []\n", ":tool: expected a table, got []"),
        (
            f"a = {'[' * 5000}{']' * 5000}\n",
            ": expected a readable TOML file, got arrays or tables nested too deeply",
        ),
        (f"a = {'9' * 6000}\n", ": expected a readable TOML file, got Exceeds the limit"),
        (
            "[tool.grpo_verify]\ntp = 2\n",
            ":tool.grpo_verify: expected the table [tool.grpo-verify], with a hyphen, got an underscore",
        ),
        (None, ": expected a readable TOML file, got a folder"),
        (os.mkfifo, ": expected a readable TOML file, got a named pipe"),
        (
            lambda path: path.symlink_to(path),
            ": expected a readable TOML file, got Too many levels of symbolic links",
        ),
    ],
)
def test_what_is_no_settings_file_is_told(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "pyproject.toml"
    if content is None:
        path.mkdir()
    elif callable(content):
        content(path)
    else:
        path.write_text(content, encoding="utf-8")
    (found,) = problems_of(tmp_path, {}, "")
    assert found.startswith(f"{path}{message}")


def test_two_spellings_in_one_file_are_refused_in_any_order(tmp_path: Path) -> None:
    for toml in ("no-controls = true\ncontrols = 'on'\n", "controls = 'on'\nno-controls = true\n"):
        (found,) = problems_of(tmp_path, {}, toml)
        assert "expected off or nothing" in found


def test_a_variable_of_our_prefix_that_is_no_setting_is_refused(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, {"GRPO_VERIFY_FOO": "1", "GRPO_VERIFY_LAUNCH": "x"}, "")
    assert found.startswith("GRPO_VERIFY_FOO: expected a known variable")
