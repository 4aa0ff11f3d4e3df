"""The answer of `grpo-verify compare`, as text and as JSON."""

from __future__ import annotations

import json

from harness.inspection.comparison import Comparison

MOST_SHOWN = 40


def comparison_text(names: tuple[str, str], found: Comparison) -> str:
    """Plain text: contract, environment, then numbers from the largest change down."""
    lines = [f"A {names[0]}", f"B {names[1]}"]
    for title, changes in (
        ("contract", found.contract),
        ("environment", found.environment),
        ("numbers", found.numbers),
    ):
        lines += ["", f"{title}: {len(changes) or 'nothing'} changed"]
        lines += [f"  {each.where}: {each.before} -> {each.after}" for each in changes[:MOST_SHOWN]]
        if len(changes) > MOST_SHOWN:
            lines.append(f"  and {len(changes) - MOST_SHOWN} more")
    if found.one_sided:
        lines += ["", *found.one_sided[:MOST_SHOWN]]
    bits = f"the numbers agree, bit for bit, in all {found.bits} shared places that hold their digests"
    verdicts = f"verdicts agree, not compared are the numbers, in all {found.compared} shared places"
    differ = (
        "numbers differ, as they may between builds and devices" if found.other_build else "DRIFT: numbers differ"
    )
    ends = {
        0: bits if found.bits else verdicts,
        1: f"{differ} ({found.compared} places were compared)",
        3: "nothing could be compared: the two share no case with numbers",
    }
    return "\n".join([*lines, "", ends[found.status], ""])


def comparison_json(names: tuple[str, str], found: Comparison) -> str:
    """The same as JSON, every change included."""
    parts = {
        title: [vars(each) for each in getattr(found, title)] for title in ("contract", "environment", "numbers")
    }
    content = {"a": names[0], "b": names[1], "exit_status": found.status, "compared": found.compared,
               "bits": found.bits, **parts,
               "one_sided": list(found.one_sided)}  # fmt: skip
    return json.dumps(content, indent=2) + "\n"
