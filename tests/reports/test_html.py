"""The page: the same bytes each time, safe, bounded, and shown by a real browser without complaint."""

import json
import re
from collections.abc import Callable
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from reports import CaseResult, QuantityResult, Report, ReportError, render
from reports.diagnosis import HeatMap
from support.chromium import MISSING, executable, show
from support.report_page import DIAGNOSIS, diagnosed

Maker = Callable[..., CaseResult]
VOID = ("meta", "link", "br", "wbr")


class Page(HTMLParser):
    """Checks that tags close in order; keeps text, ids and attributes that could fetch or run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            return
        if self.tags[-1:] == ["wbr"] and self.words:
            self.words[-1] += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values(self, name: str) -> list[str | None]:
        return [value for key, value in self.attributes if key == name]


def page(report: Report) -> Page:
    return Page(render(report, "html"))


@pytest.fixture
def full_report(rich_report: Report, make_case: Maker) -> Report:
    quantities = (diagnosed(), diagnosed("grad_policy_logits"))
    case = make_case("drift", name="long/2x2", batch="long-4096", quantities=quantities)
    contract = {
        batch: {"objective": {"beta": 0.04}, "geometry": {"padded_seq_len": length}}
        for batch, length in (("seed", 32), ("long-4096", 4096))
    }
    return Report.assemble(
        cases=[case.model_copy(update={"diagnosis": DIAGNOSIS}), *rich_report.cases],
        command=rich_report.command,
        environment={**rich_report.environment, "variables": {"NCCL_ALGO": "Ring"}},
        contract=contract,
        numeric_fingerprint=rich_report.numeric_fingerprint,
        notes=rich_report.notes,
        times=rich_report.times,
    )


def test_it_tells_the_whole_story(full_report: Report) -> None:
    text = page(full_report).text
    for part in (
        "✗ DRIFT: 2 of 6 cases give other bits than 1x1",
        "Rounding only: the same terms, summed in another order.",
        "first stage that differs per-sequence totals (its inputs agree: token terms)",
        "a row sum that depends on the number of local rows",
        "≠ 12 of 32,768",
        "sequence 3, token 17, vocab column 1025, on rank tp=1 dp=0",
        "expected 1.0 (0x3f800000) got 2.0 (0x40000000)",
        "how many elements drift, by sequence (down) and token position (across)",
        "1 · 1 100 2 · · · 3 · · 20",
        "Drifting share by sequence; none in 2 more of 4",
        "+0 against -0 1 1 80 2 to 3 30 4 to 7 8 a NaN on one side 2",
        "caught 5 of 7",
        "✓ refused as planned",
        "✗ missed",
        "geometry.padded_seq_len 32 4096",
        "objective.beta 0.04",
        'variables {"NCCL_ALGO": "Ring"}',
        "needs 8 ranks, this node has 4",
    ):
        assert part in text, part


def test_the_same_report_gives_the_same_bytes(full_report: Report) -> None:
    again = Report.from_json(full_report.to_json())
    assert render(again, "html") == render(full_report, "html")


def test_only_time_elements_depend_on_measured_times(full_report: Report) -> None:
    slower = full_report.model_copy(
        update={
            "times": {name: 3 * seconds + 1 for name, seconds in full_report.times.items()},
            "cases": tuple(case.model_copy(update={"seconds": 9.75}) for case in full_report.cases),
        }
    )
    one, other = render(full_report, "html"), render(slower, "html")
    assert one != other
    assert re.sub("<time>.*?</time>", "", one) == re.sub("<time>.*?</time>", "", other)


def test_it_fetches_and_runs_nothing(full_report: Report) -> None:
    text = render(full_report, "html")
    shown = Page(text)
    assert not {"script", "img", "iframe", "object", "form"} & set(shown.tags)
    assert shown.values("src") == []
    assert set(shown.values("href")) == {"data:,"}
    assert not [name for name, _ in shown.attributes if name.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_tables_have_headers_and_regions_have_names(full_report: Report) -> None:
    text = render(full_report, "html")
    assert text.count("<table") == text.count("<thead>") > 5
    assert "<th>" not in text
    ids = Page(text).values("id")
    assert len(set(ids)) == len(ids)
    assert set(Page(text).values("aria-labelledby")) <= set(ids)
    assert 'lang="en"' in text
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text


class Regions(HTMLParser):
    """Keeps, for each table, the attributes of the element around it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.around: list[dict[str, str | None]] = []
        self.last: dict[str, str | None] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.around.append(self.last)
        self.last = dict(attrs)


def test_a_keyboard_reaches_every_table(full_report: Report) -> None:
    regions = Regions(render(full_report, "html")).around
    assert len(regions) > 5
    for region in regions:
        assert (region["class"], region["tabindex"], region["role"]) == ("scroll", "0", "region")
        assert region["aria-label"]


def test_long_names_may_break(full_report: Report) -> None:
    text = render(full_report, "html")
    for name in (
        "per_<wbr>sequence_<wbr>policy",
        "geometry.<wbr>padded_<wbr>seq_<wbr>len",
        "bf16_<wbr>token_<wbr>sum",
    ):
        assert f'<th scope="row">{name}</th>' in text, name


def test_a_count_that_is_shortened_is_told_in_full(make_case: Maker) -> None:
    rows = ((0, 7, 999), (1000, 12_345, 9_999_999), (1_040_000, 120_000_000, 2_100_000_000))
    told = diagnosed().model_copy(update={"heat_map": HeatMap(token_width=64, sequence_width=2, rows=rows)})
    shown = page(Report.assemble(cases=[make_case("drift", quantities=(told,))]))
    assert "0-1 · 7 999 2-3 1k 12k 9.9M 4-5 1M 120M 2.1G" in shown.text
    assert "sequence 0-1, token 64-127: 7" in shown.values("title")
    assert "sequence 2-3, token 64-127: 12,345" in shown.values("title")
    assert "sequence 2-3, token 64-127: 12,345" in shown.values("aria-label")
    assert len(shown.values("title")) == 8


EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> {{ 7 * 7 }} {% raw %} &amp; \x00\x1b\u202e|`"


def test_names_are_text_and_nothing_else(make_case: Maker) -> None:
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
        environment={EVIL: EVIL, "device": EVIL},
        contract={EVIL: {"objective": EVIL}},
        numeric_fingerprint=EVIL,
        preflight=EVIL,
        notes=[EVIL],
        baseline=EVIL,
        culprit=EVIL,
        times={EVIL: 1.0},
    )
    shown = page(report)
    assert not {"script", "img"} & set(shown.tags)
    assert "{{ 7 * 7 }}" in shown.text
    assert not set("\x00\x1b\u202e") & set(render(report, "html"))


@pytest.mark.parametrize("flags", [{}, {"broken": True}, {"interrupted_by": "SIGINT"}])
def test_a_report_of_nothing_is_a_page(flags: dict) -> None:
    report = Report.assemble(**flags)
    assert f"(exit {report.exit_status})." in page(report).text


def test_thousands_of_drifting_cases_give_a_page_that_loads(make_case: Maker) -> None:
    cases = [
        make_case("drift", tp=1 + seed % 90, seed=seed, batch=f"{seed}", quantities=(diagnosed(),))
        for seed in range(1500)
    ]
    cases += [make_case("skipped", reason=f"because {seed}") for seed in range(500)]
    cases += [make_case("caught", "caught", name=f"fault {seed}") for seed in range(500)]
    text = render(Report.assemble(cases=cases, notes=map(str, range(5000))), "html")
    assert len(text) < 400_000
    assert "1,480 more drifting cases are in the JSON report" in text
    assert "300 more are in the JSON report" in text


def test_a_frozen_sample_still_becomes_a_page() -> None:
    sample = Path(__file__).parent / "data" / "report-v1.json"
    assert "caught 5 of 7" in page(Report.from_json(sample.read_text())).text


@pytest.mark.skipif(executable() is None, reason=MISSING)
@pytest.mark.parametrize("flags", [("--window-size=400,900",), ("--window-size=1400,900", "--force-dark-mode")])
def test_a_browser_shows_it_without_complaint(full_report: Report, tmp_path: Path, flags: tuple[str, ...]) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(full_report, "html"), encoding="utf-8")
    shown = show(path, *flags)
    assert shown.console == []
    for part in (
        "DRIFT: 2 of 6 cases",
        "Layout by quantity",
        "Planted faults",
        "Rounding only",
        "Contract",
        'title="sequence 1, token 64-127: 1"',
    ):
        assert part in shown.document, part


MEASURE = """<script>
const all = (selector) => [...document.querySelectorAll(selector)].filter((each) => each.checkVisibility());
const widest = (selector) => Math.max(...all(selector).map((each) => each.getBoundingClientRect().width));
parent.document.body.dataset.measured = JSON.stringify({
  screen: innerWidth,
  page: document.documentElement.scrollWidth,
  hidden: all(".scroll").filter((each) => each.scrollWidth > each.clientWidth).map((each) => ({
    name: each.ariaLabel,
    sign: getComputedStyle(each, "::after").position,
    names: getComputedStyle(each.querySelector("th[scope=row]")).position,
  })),
  paragraph: widest("p:not(.closing)"),
  bars: widest(".bars"),
});
</script>"""


def measured(text: str, path: Path, width: int) -> dict:
    """The page on a screen of this width: in a frame, since a window has a least width of its own.

    What keeps scripts out is left out.
    """
    inner = re.sub("<meta http-equiv=.*?>", "", text).replace("</body>", f"{MEASURE}</body>")
    frame = f'<iframe width="{width}" height="900" style="border: 0" srcdoc="{escape(inner)}"></iframe>'
    path.write_text(f"<!DOCTYPE html><body>{frame}</body>", encoding="utf-8")
    shown = show(path, "--window-size=2000,1000", "--hide-scrollbars")
    assert shown.console == []
    found = re.search('data-measured="(.*?)"', shown.document)
    assert found
    return json.loads(unescape(found[1]))


@pytest.mark.skipif(executable() is None, reason=MISSING)
def test_a_phone_shows_that_a_table_goes_on(full_report: Report, tmp_path: Path) -> None:
    found = measured(render(full_report, "html"), tmp_path / "report.html", 400)
    assert found["page"] == found["screen"] == 400
    assert "Layout by quantity" in [each["name"] for each in found["hidden"]]
    assert {(each["sign"], each["names"]) for each in found["hidden"]} == {("sticky", "sticky")}


@pytest.mark.skipif(executable() is None, reason=MISSING)
def test_a_wide_screen_does_not_stretch_it(full_report: Report, tmp_path: Path) -> None:
    found = measured(render(full_report, "html"), tmp_path / "report.html", 1900)
    assert found["page"] == found["screen"] == 1900
    assert found["paragraph"] <= 960
    assert found["bars"] <= 450


@pytest.mark.skipif(executable() is None, reason=MISSING)
def test_the_browser_test_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "broken.html"
    path.write_text("<script>undefined.nothing</script>", encoding="utf-8")
    assert any("TypeError" in line for line in show(path).console)
