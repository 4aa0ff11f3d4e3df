"""What a case, a quantity or a place is called in every format that is read by people."""

from reports.cases import CaseResult, FirstDrift, QuantityResult
from reports.grouping import listed
from reports.verdicts import Expect

_SHOWN_CHARS = 500
_SHOWN_NAMES = 4
_LONGEST_PARAGRAPH = 2_000
_KEPT_END = 400


def label(case: CaseResult) -> str:
    """Return what tells this case from its neighbours, in one line."""
    seed = "" if case.seed is None else f", seed {case.seed}"
    via = f", {case.transport}" if case.transport else ""
    return f"{title(case)}, batch {case.batch}{seed}{via}"


def title(case: CaseResult) -> str:
    """Return the name of a case and what it leaves unsaid: the layout, and that it counts for nothing."""
    layout = "" if str(case.layout) in case.name else str(case.layout)
    purpose = "for information" if case.expect is Expect.ANY else ""
    extras = ", ".join(filter(None, (layout, purpose)))
    return f"{case.name} ({extras})" if extras else case.name


def fault_name(case: CaseResult) -> str:
    """Return the name of a planted fault without what stands in columns beside it."""
    return case.name.removeprefix("fault/").removesuffix(f"/{case.layout}") or case.name


def shown_by(case: CaseResult) -> str:
    """Return what gave a planted fault away, or why nothing did."""
    drifted = listed((quantity.name for quantity in case.drifted), _SHOWN_NAMES)
    return case.reason or (f"seen in {drifted}" if drifted else "")


def place(first: FirstDrift) -> str:
    """Return where an element lies, in global coordinates, and who owns it."""
    parts = {"sequence": first.sequence, "token": first.token, "vocab column": first.column}
    where = ", ".join(f"{name} {index}" for name, index in parts.items() if index is not None)
    owner = f", on rank {first.owner}" if first.owner else ""
    return (where or "the whole value") + owner


def values(first: FirstDrift) -> str:
    """Return both values of an element with their bits."""
    return f"expected {first.expected} ({first.expected_bits}), got {first.got} ({first.got_bits})"


def how_many(quantity: QuantityResult) -> str:
    """Return how many elements drifted, of how many."""
    return f"{quantity.mismatched:,} of {quantity.elements:,}"


def drifted(quantity: QuantityResult) -> str:
    """Return the same as a sentence."""
    return f"{how_many(quantity)} {'element' if quantity.elements == 1 else 'elements'} drifted"


def shortened(text: str, limit: int = _SHOWN_CHARS) -> str:
    """Return `text`, cut where it is longer than anybody reads."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def without_middle(text: str, limit: int = _LONGEST_PARAGRAPH) -> str:
    """Return `text`, its middle left out where it is longer than anybody reads: the end says where to look."""
    if len(text) <= limit:
        return text
    left_out = f" [{len(text) - limit:,} characters left out] "
    return f"{text[: limit - _KEPT_END]}{left_out}{text[-_KEPT_END:]}"
