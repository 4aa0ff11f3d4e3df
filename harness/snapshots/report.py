"""A checked snapshot as a report, so that every format and exit status is that of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness.snapshots.cases import case_of
from harness.snapshots.check import Checked
from reports import Report


def snapshot_report(
    found: Sequence[Checked], folder: Path, command: Sequence[str], notes: Sequence[str] = ()
) -> Report:
    """The cases of all entries; notes count the states, and name what is stale. `notes` follow these."""
    here = next((each.entry for each in found if each.obtained is not None), None)
    contracts = {each.entry.name: each.entry.contract for each in found if each.obtained is not None}
    states = Counter(each.state.value for each in found)
    counted = ", ".join(f"{count} {state}" for state, count in states.items())
    return Report.assemble(
        cases=[case_of(index, each) for index, each in enumerate(found)],
        command=command,
        environment={**here.key.environment, "device_name": here.key.device} if here else {},
        contract=contracts,
        numeric_fingerprint=here.key.numeric_fingerprint if here and len(contracts) == 1 else None,
        baseline=f"the snapshot in {folder}",
        notes=(f"snapshot: {counted or 'nothing was requested'}", *notes),
    )
