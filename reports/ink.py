"""Text made safe to show, and the one place where rich turns it into lines."""

from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from reports.escaping import one_line
from reports.labels import without_middle
from reports.verdicts import Verdict

# One column each in both spellings, so that plain ASCII wraps at the same places.
_ASCII_GLYPHS = str.maketrans({"·": "-", "─": "-", "\ufffd": "?"})
_LEAST_WIDTH = 20

STYLES = {
    Verdict.MATCH: "green",
    Verdict.CAUGHT: "green",
    Verdict.DRIFT: "bold red",
    Verdict.MISSED: "bold red",
    Verdict.REFUSED: "bold red",
    Verdict.FAILED: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.SKIPPED: "cyan",
}
"""The colour of each verdict; the word always stands beside it."""


@dataclass(frozen=True)
class Ink:
    """How to write: columns, colour, and whether anything beyond ASCII is allowed."""

    width: int
    color: bool = False
    unicode: bool = True

    @property
    def columns(self) -> int:
        """The width that lines are wrapped to."""
        return max(self.width, _LEAST_WIDTH)

    def clean(self, text: str) -> str:
        """Return user-made text on one line, without control characters, in the allowed alphabet."""
        line = one_line(text)
        if self.unicode:
            return line
        return line.translate(_ASCII_GLYPHS).encode("ascii", "backslashreplace").decode()

    def line(self, text: str, style: str = "", indent: int = 0) -> RenderableType:
        """Return a paragraph that wraps words; continuation lines hang two columns deeper.

        Of a longer one than fits a screen the middle is left out; the JSON report holds it whole.
        """
        shown = without_middle(self.clean(text))
        return Padding(_Hanging(Text(shown, style=style)), (0, 0, 0, indent))

    def draw(self, blocks: Iterable[RenderableType]) -> str:
        """Return the blocks as text of at most `columns` columns, without trailing blanks."""
        # An environment of its own: the caller alone decides about colour and width.
        console = Console(
            file=StringIO(),
            width=self.columns,
            force_terminal=self.color,
            color_system="standard" if self.color else None,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
            _environ={},
        )
        with console.capture() as capture:
            for block in blocks:
                console.print(block)
        text = "\n".join(line.rstrip() for line in capture.get().split("\n")).strip("\n") + "\n"
        return text if self.unicode else text.translate(_ASCII_GLYPHS)


@dataclass(frozen=True)
class _Hanging:
    """Wrapped words with a hanging indent."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, *rest = self.text.wrap(console, options.max_width)
        yield first
        if rest:
            start = len(first.plain)
            tail = Text(self.text.plain[start:].lstrip(), style=self.text.style)
            yield Padding(tail, (0, 0, 0, 2))
