"""Where planted faults were seen beyond the layout at which they had to be: a line a fault, for information."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType

from reports.cases import CaseResult
from reports.grouping import group, listed
from reports.ink import Ink
from reports.labels import fault_name
from reports.verdicts import Expect, Verdict

_PREFIX = "fault/"
_SEEN = {Verdict.CAUGHT, Verdict.REFUSED}


def is_in_matrix(case: CaseResult) -> bool:
    """Whether a case is a planted fault at a further layout."""
    return case.expect is Expect.ANY and case.name.startswith(_PREFIX)


def matrix_blocks(cases: Iterable[CaseResult], ink: Ink) -> Iterator[RenderableType]:
    """Yield a line for each fault: layouts where it was seen and in what, where it was missed, where not run."""
    found = [case for case in cases if is_in_matrix(case)]
    if not found:
        return
    yield ""
    yield ink.line("planted faults at further layouts, for information")
    for members in group(found, fault_name).values():
        yield ink.line(f"{fault_name(members[0])}: {'; '.join(_parts(members))}", indent=2)


def _parts(members: Sequence[CaseResult]) -> Iterator[str]:
    for same in group(members, _outcome).values():
        layouts = listed((case.layout for case in same), len(same))
        yield f"{_outcome(same[0])} at {layouts}"


def _outcome(case: CaseResult) -> str:
    if case.verdict is Verdict.SKIPPED:
        return "not run"
    if case.verdict in _SEEN:
        return "refused" if case.verdict is Verdict.REFUSED else (case.reason or "seen")
    return "missed" if case.verdict in (Verdict.MATCH, Verdict.MISSED) else case.verdict.value
