"""Where, how much and why a case drifted: histograms, shares and the verdict in words. Plain data."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from reports.fields import Count, Text


class Part(BaseModel):
    """A frozen part of a report that accepts no unknown field."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def optional(default: Any = None) -> Any:
    """A field that is left out of the JSON where it says nothing, so that older samples are written alike."""
    return Field(default=default, exclude_if=lambda value: not value)


class Bin(Part):
    """Drifting elements among indices [start, stop) of one axis."""

    start: Count
    stop: Count
    mismatched: Count
    elements: Count


class RankShare(Part):
    """Drifting elements of what one rank holds."""

    tp: Count
    dp: Count
    mismatched: Count
    elements: Count


class Shares(Part):
    """Drifting elements by sequence, token position, vocabulary tile and owner rank.

    At most 64 bins an axis, of equal width and without gaps; an axis that the quantity lacks is empty.
    `rank` holds every rank that took part.
    """

    sequence: tuple[Bin, ...] = ()
    token: tuple[Bin, ...] = ()
    tile: tuple[Bin, ...] = ()
    rank: tuple[RankShare, ...] = ()


class HeatMap(Part):
    """Drifting elements by sequence (rows) and token position (columns), at most 64 x 64 cells.

    Cell [r][c] counts sequences from sequence_start + r * sequence_width on, sequence_width of them, and
    positions from c * token_width on.
    """

    sequence_start: Count = 0
    sequence_width: Count = 1
    token_width: Count = 1
    rows: tuple[tuple[Count, ...], ...] = ()


class Diagnosis(Part):
    """Why a case drifted. `pattern` is a fixed word (see docs/diagnosis.md), `words` the sentence to show.

    `stage` is the first stage whose inputs agree and whose output differs; `inputs` are the inputs that were
    compared and agree, `unseen` those that nobody compared. `where` and `likely` may be empty.
    """

    pattern: Text
    words: Text
    stage: Text | None = None
    inputs: tuple[Text, ...] = ()
    unseen: tuple[Text, ...] = ()
    where: Text | None = None
    likely: tuple[Text, ...] = ()
