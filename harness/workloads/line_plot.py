"""Line plots without a dependency: as text for a terminal, and as SVG for a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
MARKS = "o+x*#@%&"
COLORS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#16a085", "#7f8c8d", "#2c3e50")
MARGIN = 48
WIDTH, HEIGHT = 640, 360
"""Of a plot as SVG, in pixels."""


def text_plot(series: Mapping[str, Points], *, width: int = 72, height: int = 16) -> str:
    """Every series by its own mark on a grid of `width` x `height` characters, with the ranges and a legend."""
    low_x, high_x, low_y, high_y = _ranges(series)
    grid = [[" "] * width for _ in range(height)]
    for mark, points in zip(_cycled(MARKS, len(series)), series.values(), strict=True):
        for x, y in points:
            column = round((x - low_x) / (high_x - low_x) * (width - 1))
            row = round((high_y - y) / (high_y - low_y) * (height - 1))
            grid[row][column] = mark
    labels = [f"{high_y:.4g}", *[""] * (height - 2), f"{low_y:.4g}"]
    indent = max(map(len, labels))
    lines = [
        f"{label:>{indent}} |{''.join(row).rstrip()}".rstrip() for label, row in zip(labels, grid, strict=True)
    ]
    edges = f"{low_x:g}".ljust(width - len(f"{high_x:g}")) + f"{high_x:g}"
    legend = "   ".join(f"{mark} {name}" for mark, name in zip(_cycled(MARKS, len(series)), series, strict=True))
    pad = " " * indent
    return "\n".join([*lines, f"{pad} +{'-' * width}", f"{pad}  {edges}", f"{pad}  {legend}", ""])


def svg_plot(series: Mapping[str, Points], *, title: str) -> str:
    """The same as an SVG document."""
    low_x, high_x, low_y, high_y = _ranges(series)

    def place(x: float, y: float) -> str:
        across = MARGIN + (x - low_x) / (high_x - low_x) * (WIDTH - 2 * MARGIN)
        down = MARGIN + (high_y - y) / (high_y - low_y) * (HEIGHT - 2 * MARGIN)
        return f"{across:.1f},{down:.1f}"

    bottom, right = HEIGHT - MARGIN, WIDTH - MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        f'font-size="11"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="14">{escape(title)}</text>',
        f'<path d="M{MARGIN},{MARGIN} V{bottom} H{right}" fill="none" stroke="#444"/>',
        _label(MARGIN - 6, MARGIN + 4, f"{high_y:.4g}", "end"),
        _label(MARGIN - 6, bottom + 4, f"{low_y:.4g}", "end"),
        _label(MARGIN, bottom + 16, f"{low_x:g}", "middle"),
        _label(right, bottom + 16, f"{high_x:g}", "middle"),
    ]
    for index, (name, points) in enumerate(series.items()):
        color = COLORS[index % len(COLORS)]
        line = " ".join(place(*point) for point in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        parts.append(
            f'<text x="{right - 90}" y="{MARGIN + 14 * (index + 1)}" fill="{color}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def _ranges(series: Mapping[str, Points]) -> tuple[float, float, float, float]:
    """Lowest and highest x and y, apart where all are equal. Raises ValueError when there is no point."""
    points = [point for each in series.values() for point in each]
    if not points:
        raise ValueError("a plot: expected at least one point, got none")
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low_x, high_x, low_y, high_y = min(xs), max(xs), min(ys), max(ys)
    return low_x, high_x + (high_x == low_x), low_y, high_y + (high_y == low_y)


def _cycled(marks: str, count: int) -> str:
    return (marks * (count // len(marks) + 1))[:count]
