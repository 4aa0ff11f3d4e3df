"""Plots as text and as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from harness.workloads.line_plot import svg_plot, text_plot

CURVES = {"up": [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)], "down & out": [(0.0, 2.0), (2.0, 0.0)]}


def test_text_has_range_marks_and_legend() -> None:
    lines = text_plot(CURVES, width=21, height=5).splitlines()
    assert lines[0] == "2 |+                   o"
    assert lines[2] == "  |          o"
    assert lines[4] == "0 |o                   +"
    assert lines[6] == "   0                   2"
    assert lines[7] == "   o up   + down & out"


def test_svg_is_xml_with_a_line_a_series() -> None:
    root = ElementTree.fromstring(svg_plot(CURVES, title="a < b"))
    lines = [each for each in root.iter() if each.tag.endswith("polyline")]
    assert len(lines) == 2
    assert len(lines[0].attrib["points"].split()) == 3


def test_equal_values_and_no_values() -> None:
    assert "1" in text_plot({"flat": [(0.0, 1.0), (1.0, 1.0)]})
    with pytest.raises(ValueError, match="expected at least one point, got none"):
        text_plot({"empty": []})
