"""Planted faults at further layouts: one line each, and none of them among the ordinary cases."""

from reports import CaseResult, Expect, Layout, Report, Verdict
from reports.terminal import render_terminal


def case(fault: str, layout: tuple[int, int], verdict: Verdict, reason: str | None = None) -> CaseResult:
    place = Layout(tp=layout[0], dp=layout[1])
    return CaseResult(
        name=f"fault/{fault}/{place}",
        op="grpo_loss",
        layout=place,
        batch="control",
        expect=Expect.ANY,
        verdict=verdict,
        reason=reason,
    )


def test_the_matrix_says_where_each_fault_was_seen_missed_and_not_run() -> None:
    cases = [
        case("ring", (1, 4), Verdict.CAUGHT, "seen in loss"),
        case("ring", (2, 4), Verdict.CAUGHT, "seen in loss"),
        case("ring", (1, 8), Verdict.MISSED, "none of loss drifted"),
        case("ring", (1, 16), Verdict.SKIPPED, "too many"),
        case("beta", (2, 2), Verdict.REFUSED, "ranks disagree"),
    ]
    text = render_terminal(Report.assemble(cases=cases), width=120, color=False)
    assert "  ring: seen in loss at 1x4, 2x4; missed at 1x8; not run at 1x16\n" in text
    assert "  beta: refused at 2x2\n" in text
    assert "for information)" not in text
    assert "skipped:" not in text


def test_without_further_layouts_there_is_no_matrix() -> None:
    assert "further layouts" not in render_terminal(Report.assemble(), width=80, color=False)
