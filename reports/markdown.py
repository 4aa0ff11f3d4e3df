"""The report as Markdown for a comment on a pull request: the verdict first, what takes space folded away."""

from collections.abc import Iterable

from reports.markdown_blocks import blocks
from reports.model import Report

MOST_BYTES = 60_000
"""GitHub refuses a comment above 65,536 characters."""

_CUT = "*The rest is left out here for its length; the JSON report holds all of it.*\n"


def render_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown of at most MOST_BYTES bytes."""
    return fitted(blocks(report), MOST_BYTES)


def fitted(parts: Iterable[str], limit: int) -> str:
    """Return the first parts that fit into `limit` UTF-8 bytes, with a remark where others had to go."""
    room = limit - len(_CUT.encode())
    kept: list[str] = []
    for part in parts:
        room -= len(part.encode()) + 1
        if room < 0:
            return "\n".join([*kept, _CUT])
        kept.append(part)
    return "\n".join(kept)
