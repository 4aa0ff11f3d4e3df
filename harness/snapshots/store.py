"""Snapshot entries on disk: one folder each, with what is expected and, beside it, what was obtained instead.

Nothing is overwritten or deleted but by `accept`, which only an explicit --update calls.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from grpo_contract import InputError, Problem
from harness.comparing.entry import Entry
from harness.files.rundir import write_atomic
from harness.snapshots.obtain import Obtained
from harness.system.regular_file import read_regular

EXPECTED, OBTAINED = "expected", "obtained"
LARGEST_KEPT = 1 << 16
"""Elements of the largest tensor that is kept whole; larger ones are known by their digests."""


def read_entries(folder: Path) -> list[Entry]:
    """Every entry below `folder`, by name, none where that is missing.

    Raises InputError for a broken one, and where a file stands in the folder's place.
    """
    try:
        wrong = [place for place in (folder, *folder.parents) if place.exists() and not place.is_dir()]
    except OSError as error:  # a name that is too long
        raise InputError(Problem("input.snapshot", str(folder), "a folder", str(error.strerror))) from None
    if wrong:
        raise InputError(Problem("input.snapshot", str(folder), "a folder", f"{wrong[0]}, which is none"))
    return [read_entry(path) for path in sorted(folder.glob(f"*/{EXPECTED}.json"))]


def read_entry(path: Path) -> Entry:
    """The entry in a file. Raises InputError when it is none."""
    try:
        return Entry.model_validate_json(read_regular(path))
    except (ValidationError, UnicodeDecodeError, OSError) as error:
        raise InputError(
            Problem("input.snapshot", str(path), "a snapshot entry of this version", _instead(error))
        ) from None


def _instead(error: ValidationError | UnicodeDecodeError | OSError) -> str:
    """What a file holds in place of an entry, in words."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, UnicodeDecodeError) or any(each["type"] == "json_invalid" for each in error.errors()):
        return "a damaged file"
    fields = dict.fromkeys(str(each["loc"][0]) for each in error.errors() if each["loc"])
    return f"one whose {', '.join(fields)} {'do' if len(fields) > 1 else 'does'} not fit" if fields else "no entry"


def save_expected(folder: Path, obtained: Obtained) -> Path:
    """Write a new entry; there must be none in its place."""
    place = folder / obtained.entry.folder
    assert not (place / f"{EXPECTED}.json").exists(), "an entry is overwritten by accept alone"
    _write(place, EXPECTED, obtained)
    return place


def keep_obtained(folder: Path, obtained: Obtained) -> Path:
    """Write what differs from the expected beside it."""
    place = folder / obtained.entry.folder
    _write(place, OBTAINED, obtained)
    return place


def drop_obtained(folder: Path, entry: Entry) -> None:
    """Forget an earlier difference, once the entry matches again."""
    for suffix in (".json", ".safetensors"):
        (folder / entry.folder / f"{OBTAINED}{suffix}").unlink(missing_ok=True)


def accept(folder: Path, obtained: Obtained) -> Path:
    """Replace what is expected by what was obtained."""
    place = folder / obtained.entry.folder
    _write(place, EXPECTED, obtained)
    drop_obtained(folder, obtained.entry)
    return place


def _write(place: Path, stem: str, obtained: Obtained) -> None:
    from safetensors.torch import save

    place.mkdir(parents=True, exist_ok=True)
    small = {
        name: value.contiguous().clone()
        for name, value in obtained.tensors.items()
        if value.numel() <= LARGEST_KEPT
    }
    temporary = place / f".{stem}.safetensors.tmp"
    temporary.write_bytes(save(small))
    temporary.replace(place / f"{stem}.safetensors")
    write_atomic(place / f"{stem}.json", obtained.entry.model_dump_json(indent=1) + "\n")
