"""A report stays small: pictures are kept for the most urgent quantities, equal quantities are one object."""

import json
from collections.abc import Callable

from reports import CaseResult, Report
from reports.thinning import MOST_PICTURES
from support.report_page import diagnosed

Maker = Callable[..., CaseResult]


def pictures(case: CaseResult) -> int:
    return sum(quantity.heat_map is not None for quantity in case.quantities)


def test_the_first_pictures_are_kept_and_nothing_else_is_lost(make_case: Maker) -> None:
    cases = [make_case("drift", seed=seed, quantities=(diagnosed(), diagnosed("kl"))) for seed in range(80)]
    report = Report.assemble(cases=cases)
    assert [pictures(case) for case in report.cases] == [2] * 50 + [0] * 30
    assert all(quantity.ulp_histogram for case in report.cases for quantity in case.quantities)
    assert [case.seed for case in report.cases] == list(range(80))


def test_layouts_come_before_planted_faults(make_case: Maker) -> None:
    faults = [make_case("drift", "caught", seed=seed, quantities=(diagnosed(),)) for seed in range(MOST_PICTURES)]
    report = Report.assemble(cases=[*faults, make_case("drift", quantities=(diagnosed(),))])
    assert pictures(report.cases[-1]) == 1
    assert sum(map(pictures, report.cases)) == MOST_PICTURES


def test_a_usual_report_is_left_alone(make_case: Maker) -> None:
    cases = [make_case("drift", seed=seed, quantities=(diagnosed(),)) for seed in range(MOST_PICTURES)]
    assert sum(map(pictures, Report.assemble(cases=cases).cases)) == MOST_PICTURES


def test_equal_matching_quantities_are_one_object(make_case: Maker) -> None:
    report = Report.from_json(Report.assemble(cases=[make_case(seed=seed) for seed in range(3)]).to_json())
    assert len({id(case.quantities[0]) for case in report.cases}) == 1


def test_json_written_in_pieces_is_the_json_of_the_whole(rich_report: Report) -> None:
    for report in (rich_report, Report.assemble(), Report.assemble(notes=['"cases": []', '\n  "cases": []'])):
        whole = json.dumps(report.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
        assert report.to_json() == whole
