"""A checked snapshot entry as a case of a report, its differences located by value or by digest."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import Tensor

from harness.comparing.comparison import compare
from harness.comparing.digests import differing_blocks
from harness.comparing.drift import Drift
from harness.comparing.entry import QuantityDigest
from harness.planning.planned import PlannedCase
from harness.ranks.case_result import case_result
from harness.ranks.rank_outcome import RankOutcome
from harness.snapshots import store
from harness.snapshots.check import Checked, State
from harness.snapshots.obtain import TRANSPORT
from reports import CaseResult, Layout, Verdict


def case_of(index: int, checked: Checked) -> CaseResult:
    """A checked entry as a case of a report; one that proves nothing is skipped, with its state as the reason."""
    entry = checked.entry
    planned = PlannedCase(index=index, name=entry.name, op=entry.key.op, layout=(1, 1), batch=entry.batch,
                          seed=entry.seed, repeat=1)  # fmt: skip
    if checked.state not in (State.MATCH, State.DRIFT):
        return CaseResult(
            name=entry.name,
            op=entry.key.op,
            layout=Layout(tp=1, dp=1),
            batch=entry.batch,
            seed=entry.seed,
            verdict=Verdict.SKIPPED,
            reason=f"{checked.state.value}: {checked.why}",
        )
    drifts, notes = _drifts(checked)
    outcome = RankOutcome(tp_rank=0, dp_rank=0, drifts=tuple(drifts), notes=tuple(notes))
    result = case_result(planned, [outcome], transport=TRANSPORT)
    return result if checked.state is State.MATCH else result.model_copy(update={"reason": checked.why})


def _drifts(checked: Checked) -> tuple[list[Drift], list[str]]:
    obtained, expected = checked.obtained, checked.expected
    assert obtained is not None
    assert expected is not None
    assert checked.place is not None
    kept, lost = _kept(checked.place)
    drifts, notes = [], [] if lost is None else [lost]
    for name in dict.fromkeys((*expected.quantities, *obtained.tensors)):
        wanted, got = expected.quantities.get(name), obtained.entry.quantities.get(name)
        if wanted is None or got is None:
            drifts.append(_one_sided(name, wanted, got))
            continue
        value = obtained.tensors[name]
        drift = compare(name, kept.get(name, value) if checked.state is State.DRIFT else value, value)
        if wanted == got or drift.mismatched:
            drifts.append(drift)
        else:
            drifts.append(_by_digest(name, value, wanted, got))
            notes.append(
                f"{name} is located by digests: its counts are those of blocks of {wanted.block} elements"
            )
    return drifts, notes


def _one_sided(name: str, expected: QuantityDigest | None, got: QuantityDigest | None) -> Drift:
    return Drift(name=name, elements=1, nonzero=1, **_described(expected, got))


def _described(expected: QuantityDigest | None, got: QuantityDigest | None) -> dict[str, Any]:
    words = ["nothing" if each is None else f"{list(each.shape)} {each.dtype}" for each in (expected, got)]
    unknown = {"mismatched": 1, "max_abs": math.nan, "expected_bits": "0x0", "got_bits": "0x0"}
    return {**unknown, "expected": words[0], "got": words[1]}


def _kept(place: Path) -> tuple[dict[str, Tensor], str | None]:
    """The expected tensors that were kept whole, and what is to be said where their file is gone or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = place / f"{store.EXPECTED}.safetensors"
    lost = "what differs is told by the digests alone; snapshot save --update writes it anew"
    try:
        return load_file(path), None
    except FileNotFoundError:
        return {}, f"{path} is missing: {lost}"
    except (SafetensorError, OSError) as error:
        return {}, f"{path} cannot be read ({error}): {lost}"


def _by_digest(name: str, value: Tensor, expected: QuantityDigest, got: QuantityDigest) -> Drift:
    """A difference known by digests alone: whole blocks count, and values are not shown."""
    seen = compare(name, value, value)
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return seen.model_copy(update={**_described(expected, got), "mismatched": seen.elements})
    blocks = list(differing_blocks(expected, got))
    if not blocks:  # a digest that does not fit its own blocks: the entry was edited or damaged
        return seen.model_copy(update={**_described(expected, got), "mismatched": seen.elements})
    length = math.prod(got.shape[1:]) if len(got.shape) > 1 else 1
    s, b, mine, theirs = blocks[0]
    place = _place(s, b * expected.block, got.shape)
    return seen.model_copy(
        update={
            "mismatched": sum(min(expected.block, length - block * expected.block) for _, block, _, _ in blocks),
            "max_abs": math.nan,
            "first": place,
            "sequences": tuple(sorted({each[0] for each in blocks})),
            "expected": f"block {b} of sequence {s}",
            "got": f"block {b} of sequence {s}",
            "expected_bits": f"0x{mine}",
            "got_bits": f"0x{theirs}",
        }
    )


def _place(sequence: int, offset: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) == 3:
        return (sequence, *divmod(offset, shape[2]))
    return (sequence,) if shape else ()
