"""The opt-in plugin, run by pytest inside pytest: alone, under xdist, and absent unless asked for."""

import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]

TESTS = """
import pytest
from loss_ops.controls import faulty_op

def test_holds(verify_layouts):
    assert verify_layouts("grpo_loss", layouts=["2x2"], batch="seed").verdict == "match"

@pytest.mark.verify_layouts(layouts=["1x2"], batch="seed")
def test_marked(verify_layouts):
    assert [str(case.layout) for case in verify_layouts().cases] == ["1x2"]

def test_drifts(verify_layouts):
    verify_layouts(faulty_op("gradient_scaled_by_dp"), layouts=["1x2"])
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return pytester


def run(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    return project.run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_matches_pass_and_a_drift_fails_with_its_report(
    project: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    project.makepyfile(TESTS)
    result = run(project, "-p", "harness.pytest_plugin", "--strict-markers", "--junitxml", "out.xml", *workers)
    result.assert_outcomes(passed=2, failed=1)
    text = result.stdout.str()
    assert "constant factor 2" in text
    assert "DRIFT:" in text
    junit = (project.path / "out.xml").read_text()
    assert '<property name="grpo_verify" value="match" />' in junit
    assert '<property name="grpo_verify" value="drift" />' in junit


def test_without_the_option_there_is_no_fixture(project: pytest.Pytester) -> None:
    project.makepyfile("def test_one(verify_layouts): ...")
    result = run(project)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'verify_layouts' not found*"])


def test_a_wrong_marker_is_named_and_nothing_proven_fails(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.mark.verify_layouts(layout="1x2")
        def test_wrong(verify_layouts):
            verify_layouts()

        def test_nothing(verify_layouts):
            verify_layouts(layouts=["1x1"])
        """
    )
    result = run(project, "-p", "harness.pytest_plugin")
    result.stdout.fnmatch_lines(["*expected layouts, batch, repeat, seed, got layout*", "*INCONCLUSIVE*"])
    result.assert_outcomes(failed=1, errors=1)


MARKED = """
import pytest

@pytest.mark.verify_layouts(layouts=["1x2"])
def test_without():
    pass

@pytest.mark.verify_layouts(layouts=["1x2"])
def test_never_called(verify_layouts):
    pass

@pytest.mark.verify_layouts(layouts=["1x2"])
def test_skipped(verify_layouts):
    pytest.skip("not here")

@pytest.mark.verify_layouts(layouts=["1x2"])
def test_of_another_kind(verify_layouts):
    assert 1 == 2, "its own reason"

@pytest.fixture
def report(verify_layouts):
    return verify_layouts()

@pytest.mark.verify_layouts(layouts=["1x2"])
def test_through_another_fixture(report):
    assert report.verdict == "match"

@pytest.mark.verify_layouts(layouts=["1x2"])
class TestDefaults:
    def test_beside(self):
        pass

    def test_asks_later(self, request):
        request.getfixturevalue("verify_layouts")()
"""


def test_a_marked_test_that_verifies_nothing_fails(project: pytest.Pytester) -> None:
    project.makepyfile(MARKED)
    result = run(project, "-p", "harness.pytest_plugin")
    result.assert_outcomes(passed=3, failed=3, skipped=1)
    nothing = "marked verify_layouts, but nothing was verified: the test"
    result.stdout.fnmatch_lines([f"{nothing} does not use the fixture verify_layouts"])
    result.stdout.fnmatch_lines([f"{nothing} never calls the fixture verify_layouts"])
    result.stdout.fnmatch_lines(["*its own reason*"])
