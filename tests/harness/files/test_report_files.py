"""Several formats at once: the first is the answer, the others are files."""

import io
import sys
from pathlib import Path

import pytest
from junitparser import JUnitXml

from harness.cli import main
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig
from reports import CaseResult, Layout, QuantityResult, Report, Verdict
from reports.formats import FILE_NAMES, RENDERERS

REPORT = Report.assemble(
    cases=[
        CaseResult(
            name="größe/s0/1x2",
            op="grpo_loss",
            layout=Layout(tp=1, dp=2),
            batch="größe",
            verdict=Verdict.DRIFT,
            quantities=(QuantityResult(name="loss", verdict=Verdict.DRIFT, elements=1, mismatched=1),),
        )
    ]
)


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "report.json"
    path.write_text(REPORT.to_json(), encoding="utf-8")
    return str(path)


def test_the_first_format_is_printed_and_the_rest_written(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "folder"
    assert main(["show", saved, "--format", "markdown, junit,html", "--out", str(out)]) == 1
    assert capsys.readouterr().out.startswith("## ❌ grpo-verify: drift")
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.junit.xml"]
    assert JUnitXml.fromfile(str(out / "report.junit.xml")).failures == 1
    assert "größe" in (out / "report.html").read_text(encoding="utf-8")


def test_every_format_can_be_written(saved: str, tmp_path: Path) -> None:
    names = ["terminal", *RENDERERS]
    main(["show", saved, "--format", f"json,{','.join(names)}", "--out", str(tmp_path / "all")])
    assert {path.name for path in (tmp_path / "all").iterdir()} == set(FILE_NAMES.values()) - {"report.json"}
    assert FILE_NAMES.keys() == RENDERERS.keys()


def test_further_formats_need_a_folder() -> None:
    with pytest.raises(RequestError, match=r"--out: expected a folder for the formats after the first \(html\)"):
        RunConfig(format="json,html")
    with pytest.raises(RequestError, match="got json,pdf"):
        RunConfig(format="json,pdf", out="x")
    assert RunConfig(format="json,json").formats == ("json",)


def test_a_refusal_answers_in_the_first_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tp", "0", "--format", "json,html", "--out", "x"]) == 2
    assert Report.from_json(capsys.readouterr().out).verdict == "refused"
    assert main(["--tp", "0", "--format", "github"]) == 2
    assert "::error title=grpo-verify%3A refused::" in capsys.readouterr().out
    assert main(["--tp", "0"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_text_keeps_to_the_terminal_and_a_document_to_utf8(
    saved: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for format in RENDERERS:
        buffer = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding=encoding))
        assert main(["show", saved, "--format", format]) == 1
        text = buffer.getvalue().decode(encoding if format == "terminal" else "utf-8")
        assert "DRIFT" in text.upper()
        assert any(name in text for name in ("größe", "gr\\xf6\\xdfe", "gr\\u00f6\\u00dfe"))


def test_no_color_is_honoured(
    saved: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["show", saved])
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(["show", saved])
    assert "\x1b[" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variables", "plain"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, True),
        ({"LC_ALL": "C.UTF-8"}, False),
        ({"LANG": "C", "LC_ALL": "de_DE.UTF-8"}, False),
        ({"LC_ALL": "C", "PYTHONUTF8": "1"}, False),
        ({}, False),
    ],
)
def test_the_c_locale_gets_plain_text(
    saved: str, variables: dict[str, str], plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG", "PYTHONUTF8", "PYTHONIOENCODING"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="utf-8"))
    assert main(["show", saved]) == 1
    assert buffer.getvalue().decode("utf-8").isascii() is plain
