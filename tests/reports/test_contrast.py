"""The colours of the page: text stands out from its ground in the light and in the dark theme."""

import re
from pathlib import Path

import pytest

CSS = (Path(__file__).parents[2] / "reports" / "templates" / "report.css").read_text(encoding="utf-8")
LEAST = 4.5
"""What WCAG 2.2 AA asks of small text."""
PAIRS = [
    *((text, ground) for text in ("text", "soft", "good", "bad", "doubt") for ground in ("page", "card")),
    ("text", "heat-1"),
    ("heat-text", "heat-2"),
    ("heat-text", "heat-3"),
    ("heat-text-strong", "heat-4"),
    ("heat-text-strong", "heat-5"),
]


def theme(number: int) -> dict[str, str]:
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    return dict(re.findall(r"--([\w-]+): (#\w+);", blocks[number]))


def luminance(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_dark_theme_is_for_screens() -> None:
    """Light text would be lost on white paper."""
    assert re.findall(r"@media (.*)\(prefers-color-scheme: dark\)", CSS) == ["screen and "]


def test_paper_keeps_what_a_colour_repeats() -> None:
    _, _, paper = CSS.partition("@media print {")
    assert ".heat td, .positions td, .bar { print-color-adjust: exact; }" in paper
    assert "var(--columns)" in paper


@pytest.mark.parametrize("number", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_stands_out(number: int, text: str, ground: str) -> None:
    colors = theme(number)
    low, high = sorted((luminance(colors[text]), luminance(colors[ground])))
    assert (high + 0.05) / (low + 0.05) >= LEAST
