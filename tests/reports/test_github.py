"""The text for GitHub Actions: annotations for the runner, a summary for the reader."""

import re
from collections.abc import Callable

import pytest
from markdown_it import MarkdownIt

from reports import CaseResult, QuantityResult, Report, ReportError, render
from reports.github import MOST_ANNOTATIONS, MOST_BYTES
from reports.markdown import MOST_BYTES as MOST_COMMENT_BYTES

Maker = Callable[..., CaseResult]


def commands(text: str) -> list[str]:
    """What the runner would obey."""
    return [line for line in text.splitlines() if line.lstrip().startswith("::")]


def test_a_match_needs_no_annotation(make_case: Maker) -> None:
    text = render(Report.assemble(cases=[make_case(), make_case("caught", "caught")]), "github")
    assert commands(text) == []
    assert text.startswith("## ✅ grpo-verify: match\n")


def test_the_worst_comes_first(rich_report: Report) -> None:
    found = commands(render(rich_report, "github"))
    titles = [re.sub(r"^::(\w+) title=(.*?)::.*", r"\1 \2", line) for line in found]
    assert [title.partition("%3A")[0] for title in titles] == [
        "error grpo-verify",
        "error drift",
        "error missed",
        "error inconclusive",
    ]
    assert "sequence 3, token 17, vocab column 1025, on rank tp=1 dp=0" in found[1]


def test_never_more_than_ten_annotations(make_case: Maker) -> None:
    cases = [make_case("drift", seed=seed) for seed in range(40)] + [make_case("failed")]
    found = commands(render(Report.assemble(cases=cases), "github"))
    assert len(found) == MOST_ANNOTATIONS
    assert "title=failed" in found[1]


def test_an_inconclusive_report_warns(make_case: Maker) -> None:
    text = render(Report.assemble(cases=[make_case("skipped")]), "github")
    assert [line.partition(" ")[0] for line in commands(text)] == ["::warning"]


TAGS = {"h2", "h3", "p", "ul", "li", "code", "strong", "table", "thead", "tbody", "tr", "th", "td", "br"}
TAGS |= {"details", "summary"}
EVIL = "x\n::error::pwned\r\n--> --!> --- <!-- | `a` <b> ##[error]z ::set-output name=a::b"


def test_names_can_neither_command_the_runner_nor_leave_the_comment(make_case: Maker) -> None:
    quantity = QuantityResult(name=EVIL, verdict="drift", elements=4, mismatched=1, pattern=EVIL)
    cases = [
        make_case("drift", name=EVIL, op=EVIL, batch=EVIL, quantities=(quantity,), transport=EVIL),
        make_case("failed", reason=EVIL, name=EVIL),
        make_case("missed", "caught", name=EVIL, reason=EVIL),
        make_case("skipped", name=EVIL, reason=EVIL),
    ]
    report = Report.assemble(
        cases=cases,
        errors=[ReportError(code=EVIL, message=EVIL)],
        command=[EVIL],
        environment={EVIL: EVIL},
        preflight=EVIL,
        notes=[EVIL],
        baseline=EVIL,
        culprit=EVIL,
    )
    text = render(report, "github")
    assert len(commands(text)) == 5
    assert "##[" not in text.partition("-->")[2]
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    assert html.startswith("<!--\n::error")
    assert html.count("-->") == 1
    visible = html.partition("-->")[2]
    assert "::error title" not in visible
    tags = set(re.findall(r"</?([a-z0-9]+)", visible))
    assert tags <= TAGS
    assert render(report, "markdown") in text


@pytest.mark.parametrize(("format", "limit"), [("github", MOST_BYTES), ("markdown", MOST_COMMENT_BYTES)])
def test_texts_stay_below_the_limits_of_github(make_case: Maker, format: str, limit: int) -> None:
    long = "日本語 <&|> " * 4000
    cases = [
        make_case("drift", name=f"{seed} {long}", batch=f"{seed} {long}", reason=f"{seed} {long}")
        for seed in range(60)
    ]
    text = render(Report.assemble(cases=cases, environment={long: long}), format)
    assert len(text.encode()) <= limit
    assert "DRIFT: 60 of 60 cases" in text


def test_what_does_not_fit_is_said(make_case: Maker) -> None:
    cases = [make_case("failed", reason=f"{seed} " + "<&|>" * 200, tp=1 + seed) for seed in range(200)]
    text = render(Report.assemble(cases=cases), "markdown")
    assert text.endswith("the JSON report holds all of it.*\n")


def test_markdown_is_the_same_each_time(rich_report: Report) -> None:
    again = Report.from_json(rich_report.to_json())
    for format in ("markdown", "github", "junit", "sarif"):
        assert render(again, format) == render(rich_report, format)


def test_markdown_tells_the_story(rich_report: Report) -> None:
    text = render(rich_report, "markdown")
    for part in (
        "## ❌ grpo-verify: drift",
        "DRIFT: 1 of 5 cases gives other bits than 1x1",
        "**≠** 12 of 32,768",
        "<summary>Planted faults: caught 5 of 7</summary>",
        "| <code>bf16_token_sum</code> | 2x2 | missed |",
        "| refused as planned |",
        "needs 8 ranks, this node has 4",
        "note: <code>--beta 0.04 wins",
    ):
        assert part in text, part
