"""The pytest plugin, opt-in: `pytest -p harness.pytest_plugin`. Imports torch only when a test asks for it.

    def test_layouts(verify_layouts):
        verify_layouts("grpo_loss", layouts=["2x1", "2x2"], batch="seed")

Works in one process and under pytest-xdist: nothing is launched and nothing is shared between tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from loss_ops.batch import GlobalBatch
    from reports import Report

MARKER = "verify_layouts"
OPTIONS = ("layouts", "batch", "repeat", "seed")
WIDTH = 100
VERIFIED = pytest.StashKey[bool]()


class VerifyLayouts(Protocol):
    """What the fixture gives: see `harness.verify.verify_loss` for the arguments."""

    def __call__(
        self, op: Any = ..., *, layouts: Any = ..., batch: GlobalBatch | str | Path = ..., **options: Any
    ) -> Report: ...


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    about = f"{MARKER}({', '.join(f'{name}=...' for name in OPTIONS)}): defaults of the fixture {MARKER}"
    config.addinivalue_line("markers", about)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a marked test that ends well and has verified nothing."""
    yield
    if _is_marked(item) and VERIFIED not in item.stash:
        asked = MARKER in getattr(item, "fixturenames", ())
        lacks = "never calls the fixture" if asked else "does not use the fixture"
        pytest.fail(f"marked {MARKER}, but nothing was verified: the test {lacks} {MARKER}", pytrace=False)


def _is_marked(item: pytest.Item) -> bool:
    """By a marker of its own; one of its class or module only gives defaults to tests that use the fixture."""
    if MARKER in getattr(item, "fixturenames", ()):
        return item.get_closest_marker(MARKER) is not None
    return any(each.name == MARKER for each in item.own_markers)


@pytest.fixture
def verify_layouts(request: pytest.FixtureRequest) -> Iterator[VerifyLayouts]:
    """Verify an op over layouts with virtual ranks; the test fails with the report where it does not hold.

    A report that proves nothing fails too. The verdict is kept as a property of the test, for JUnit files.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the number of threads changes summation trees
    yield _bound(request.node)
    torch.set_num_threads(threads)


def _bound(node: pytest.Item) -> VerifyLayouts:
    defaults = _marked(node)

    def verify(op: Any = "grpo_loss", **options: Any) -> Report:
        from harness.verify import verify_loss
        from reports import render

        node.stash[VERIFIED] = True
        report = verify_loss(op, **{**defaults, **options})
        node.user_properties.append(("grpo_verify", report.verdict.value))
        if report.exit_status:
            pytest.fail(render(report, "terminal", width=WIDTH), pytrace=False)
        return report

    return verify


def _marked(node: pytest.Item) -> dict[str, Any]:
    marker = node.get_closest_marker(MARKER)
    if marker is None:
        return {}
    unknown = [*marker.kwargs.keys() - set(OPTIONS), *(["positional arguments"] if marker.args else [])]
    if unknown:
        raise pytest.UsageError(f"{MARKER}: expected {', '.join(OPTIONS)}, got {', '.join(map(str, unknown))}")
    return dict(marker.kwargs)
