"""The report as text: every width, every alphabet, every verdict."""

import re
import time
from collections.abc import Callable

import pytest
from rich.cells import cell_len

from reports import CaseResult, QuantityResult, Report, ReportError, render
from reports.terminal import render_terminal

Maker = Callable[..., CaseResult]
WIDTHS = (60, 80, 120, 200)


def draw(report: Report, width: int = 80, **options) -> str:
    return render_terminal(report, width=width, color=options.pop("color", False), **options)


def joined(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [20, 33, *WIDTHS])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_too_wide_and_the_verdict_is_whole(rich_report: Report, width: int, unicode: bool) -> None:
    text = draw(rich_report, width, unicode=unicode)
    assert max(map(cell_len, text.splitlines())) <= width
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert "DRIFT: 1 of 5 cases gives other bits than 1x1" in joined(text)
    assert joined(text).endswith("(exit 1).")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("verdict", ["match", "drift", "inconclusive"])
def test_the_case_table_never_cuts_a_verdict(rich_report: Report, width: int, verdict: str) -> None:
    rows = draw(rich_report, width).splitlines()
    assert any(re.search(rf"^layout \dx\d .*\b{verdict}\b", row) for row in rows)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_drift_says_what_where_and_who(rich_report: Report, width: int) -> None:
    text = joined(draw(rich_report, width))
    for part in (
        "12 of 32,768",
        "8,388,608",
        "constant factor 2",
        "sequence 3, token 17, vocab column 1025, on rank tp=1 dp=0",
        "expected 1.0 (0x3f800000)",
        "got 2.0 (0x40000000)",
        "sequences affected: 3, 5-7",
        "for information",
    ):
        assert part in text, part


def test_the_rest_of_the_report_is_there(rich_report: Report) -> None:
    text = joined(draw(rich_report, 120))
    for part in (
        "op grpo_loss, liger · on cpu · via gloo",
        "contract 9f2c4e5ab01d",
        "preflight: 4 of 4 ranks agree",
        "note: --beta 0.04 wins",
        "planted faults: caught 5 of 7",
        "missed: bf16_token_sum (2x2): missed for a reason",
        "skipped: order_dependent_sum (2x2): needs 3 ranks on one axis",
        "needs 8 ranks, this node has 4: 2 cases (layouts 4x2, 4x4)",
        "lowest share in any case of elements that are not zero: grad_policy_logits 25.00%",
    ):
        assert part in text, part


def test_colour_only_when_asked_whatever_the_environment(
    rich_report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    plain = draw(rich_report, 120)
    assert "\x1b" not in plain
    monkeypatch.setenv("NO_COLOR", "1")
    colored = draw(rich_report, 120, color=True)
    assert "\x1b[1;31m" in colored
    assert [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", colored).splitlines()] == plain.splitlines()


@pytest.mark.parametrize("name", ["[red]x[/red]", "[/]", "[bold", ":smile:", "a\\[b]"])
def test_markup_in_names_prints_literally(make_case: Maker, name: str) -> None:
    cases = [
        make_case(batch=name, name=name, op=name),
        make_case("drift", batch=name, name=name, quantities=(_drift(name),)),
        make_case("skipped", reason=name),
        make_case("missed", "caught", name=name, reason=name),
    ]
    errors = [ReportError(code=name, message=name)]
    text = draw(Report.assemble(cases=cases, errors=errors, preflight=name, notes=[name], baseline=name), 200)
    assert text.count(name) >= 12


def _drift(name: str) -> QuantityResult:
    return QuantityResult(name=name, verdict="drift", elements=4, mismatched=1, pattern=name)


def test_control_characters_never_reach_the_terminal(make_case: Maker) -> None:
    evil = "a\x1b[2Jb\x07c\u202ed\ne\tf\x85g"
    cases = [make_case("drift", name=evil, batch=evil, quantities=(_drift(evil),), notes=(evil,))]
    text = draw(Report.assemble(cases=cases, preflight=evil, culprit=evil, command=[evil]), 200)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "a\ufffd[2Jb\ufffdc\ufffdd e f g" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_ascii_means_ascii(make_case: Maker, width: int) -> None:
    cases = [make_case("drift", name="größe 日本", batch="é" * 150, notes=("naïve\x00",))]
    text = draw(Report.assemble(cases=cases), width, unicode=False)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= width
    assert "gr\\xf6\\xdfe" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_wide_characters_and_long_words_stay_within_the_width(make_case: Maker, width: int) -> None:
    cases = [make_case("drift", name="日本語" * 60, batch="/".join(["folder"] * 60))]
    text = draw(Report.assemble(cases=cases), width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "drift" in text


def test_of_a_text_that_fills_screens_both_ends_are_shown(make_case: Maker) -> None:
    long = f"RuntimeError: {'x' * 50_000} (logs: here)"
    case = make_case("failed", reason=long, quantities=())
    report = Report.assemble(cases=[case], culprit=long, errors=(), broken=True, notes=(long,))
    text = joined(draw(report))
    assert len(text) < 10_000
    assert text.count("characters left out]") == 3
    assert text.count("(logs: here)") == 3
    assert long in report.to_json()


def test_a_narrow_table_leaves_out_what_the_names_tell(make_case: Maker) -> None:
    cases = [make_case(tp=tp, batch="long-1024", name=f"long-1024/s0/{tp}x2") for tp in (1, 2)]
    narrow = draw(Report.assemble(cases=cases), 40).splitlines()
    assert "case              verdict  equal" in narrow
    assert "long-1024/s0/1x2  match    9/9" in narrow
    assert "case              layout  batch      verdict  equal" in draw(Report.assemble(cases=cases), 60)
    other = make_case(batch="long", name="long-1024/s0/2x2")
    assert re.search(r"^case +batch +verdict", draw(Report.assemble(cases=[*cases, other]), 40), re.MULTILINE)


@pytest.mark.parametrize(("elements", "words"), [(1, "1 of 1 element drifted"), (2, "1 of 2 elements drifted")])
@pytest.mark.parametrize("format", ["terminal", "junit", "github", "sarif"])
def test_one_element_is_no_plural(make_case: Maker, format: str, elements: int, words: str) -> None:
    drift = QuantityResult(name="kl", verdict="drift", elements=elements, mismatched=1)
    report = Report.assemble(cases=[make_case("drift", quantities=(drift,))])
    assert words in joined(render(report, format, width=80))


def test_infinite_differences_are_shown(make_case: Maker) -> None:
    infinite = QuantityResult(name="kl", verdict="drift", elements=1, mismatched=1, max_abs=float("inf"))
    text = draw(Report.assemble(cases=[make_case("drift", quantities=(infinite,))]))
    assert "max abs inf" in text


def _four_layouts(make_case: Maker) -> list[CaseResult]:
    return [make_case(tp=tp, dp=dp) for tp in (1, 2) for dp in (1, 2)]


def _closing(report: Report) -> str:
    return draw(report, 500).splitlines()[-1]


def test_closing_sentence_of_a_full_match(make_case: Maker) -> None:
    faults = [make_case("caught", "caught", name=f"fault {number}") for number in range(12)]
    assert _closing(Report.assemble(cases=_four_layouts(make_case) + faults)) == (
        "MATCH: every one of 4 layouts gives the same bits as 1x1 in 9 quantities, "
        "and all 12 planted faults were caught (exit 0)."
    )


def test_closing_sentence_states_what_was_skipped(make_case: Maker) -> None:
    cases = [
        *_four_layouts(make_case),
        make_case("skipped", tp=4),
        make_case("caught", "caught"),
        make_case("skipped", "caught"),
    ]
    assert _closing(Report.assemble(cases=cases)) == (
        "MATCH: 4 of 5 layouts give the same bits as 1x1 in 9 quantities (1 skipped), "
        "and 1 of 2 planted faults was caught (1 skipped) (exit 0)."
    )


def test_closing_sentence_of_a_match_without_controls_is_honest(make_case: Maker) -> None:
    closing = _closing(Report.assemble(cases=[make_case()], baseline="snapshot main.json"))
    assert closing.startswith("MATCH: layout 2x2 gives the same bits as snapshot main.json in 9 quantities")
    assert "no planted fault was in this run" in closing


@pytest.mark.parametrize(
    ("outcomes", "flags", "start", "code"),
    [
        ("", {}, "INCONCLUSIVE: nothing is proven", 3),
        ("match:drift match:match", {}, "DRIFT: 1 of 2 cases gives other bits than 1x1", 1),
        ("match:match caught:missed", {}, "MISSED: 1 of 1 planted fault was not seen", 1),
        ("match:skipped", {}, "INCONCLUSIVE: nothing is proven", 3),
        ("match:match caught:inconclusive", {}, "INCONCLUSIVE: the layouts that ran agree, but 1 planted", 3),
        ("match:match match:inconclusive", {}, "INCONCLUSIVE: 1 case could not have shown", 3),
        ("match:match match:refused", {}, "REFUSED: 1 case stopped before", 2),
        ("match:match", {"errors": [ReportError(code="c", message="m")]}, "REFUSED: 1 problem in the", 2),
        ("match:match", {"broken": True, "culprit": "rank 3"}, "FAILED: the run broke", 4),
        ("match:failed", {}, "FAILED: the run broke", 4),
        ("match:match", {"interrupted_by": "SIGINT"}, "INTERRUPTED: stopped by SIGINT after 1 case", 130),
        ("match:match", {"interrupted_by": "SIGTERM"}, "INTERRUPTED: stopped by SIGTERM after 1 case", 143),
    ],
)
def test_every_verdict_has_one_closing_sentence(
    make_case: Maker, outcomes: str, flags: dict, start: str, code: int
) -> None:
    cases = [make_case(*reversed(word.split(":"))) for word in outcomes.split()]
    report = Report.assemble(cases=cases, **flags)
    for text in (draw(report, 500), draw(report, 500, quiet=True)):
        closing = text.splitlines()[-1]
        assert closing.startswith(start)
        assert closing.endswith(f"(exit {code}).")
        assert len(re.findall(r"\(exit \d+\)", text)) == 1


def test_quiet_keeps_what_went_wrong(rich_report: Report, make_case: Maker) -> None:
    quiet = draw(rich_report, 120, quiet=True)
    assert "sequence 3, token 17" in quiet
    assert "missed: bf16_token_sum" in quiet
    assert "preflight" not in quiet
    assert "layout 1x2" not in quiet
    assert len(draw(Report.assemble(cases=[make_case()]), 500, quiet=True).splitlines()) == 1


@pytest.mark.parametrize("verdict", ["match", "drift", "skipped", "failed"])
def test_thousands_of_cases_render_short_and_fast(make_case: Maker, verdict: str) -> None:
    cases = [
        make_case(verdict, tp=1 + seed % 8, seed=seed, reason=f"because {seed}", batch=f"batch {seed % 50}")
        for seed in range(5000)
    ]
    report = Report.assemble(cases=cases)
    start = time.perf_counter()
    text = draw(report)
    # Generous: a shared machine must not make this flaky, a table of 5000 rows would still fail.
    assert time.perf_counter() - start < 5
    assert len(text.splitlines()) < 250
    assert "5,000" in text or "625 cases" in text or "4,988 more" in text


def test_grouped_rows_say_how_many(make_case: Maker) -> None:
    cases = [make_case(tp=tp, seed=seed) for tp in (1, 2) for seed in range(40)]
    rows = [line for line in draw(Report.assemble(cases=cases)).splitlines() if line.startswith("40 cases")]
    assert len(rows) == 2
    assert all("40 seeds" in row and "9/9" in row for row in rows)


def test_the_registry_knows_its_formats(rich_report: Report) -> None:
    assert render(rich_report, "json") == rich_report.to_json()
    assert render(rich_report, "terminal", width=100) == draw(rich_report, 100)
    with pytest.raises(ValueError, match=r"expected one of terminal, json, html, .*, got 'pdf'"):
        render(rich_report, "pdf")


@pytest.mark.parametrize(("width", "shown"), [(200, "1/2 to 2/2 quantities"), (60, "1/2 to 2/2")])
def test_what_cases_of_a_row_have_in_common_says_what_it_counts(make_case: Maker, width: int, shown: str) -> None:
    """Each term explains itself: no number of scores, and no "at least" of nobody knows what."""

    def compared(*powers: float) -> tuple[QuantityResult, ...]:
        verdicts = {0.0: "inconclusive"}
        return tuple(
            QuantityResult(name=f"q{power}", verdict=verdicts.get(power, "match"), elements=4, power=power)
            for power in powers
        )

    cases = [
        make_case(seed=seed, batch=f"batch {seed}", quantities=compared(0.25, 0.5) if seed else compared(0.5, 0.0))
        for seed in range(70)
    ]
    text = joined(draw(Report.assemble(cases=cases), width=width))
    assert shown in text
    assert "scores" not in text
    assert "at least" not in text
    assert "same bits as 1x1 in 1 to 2 of 2 quantities (not proven in every case: q0.0)" in text
    assert "lowest chance in any case that a changed summation order would show: q0.5 50.00%, q0.0 0.00%" in text
