"""The run directory: the files through which the launcher and its ranks talk. Standard library only.

    plan.json               what to run, written by the launcher
    status/rank-R.json      where rank R is; status/rank-R.step counts the collectives it entered
    cases/NNNNN.json        one finished case each
    logs/                   what the launcher and the ranks printed
    stacks/rank-R.txt       rank R's stacks, written when the launcher asks for them
    rendezvous, store       where torchrun and the ranks meet: files, so that no socket listens to the network

The directory is private to its owner (0700, files 0600). JSON files are replaced in one step, so that a
reader sees the old text or the new one, never half of either.
"""

from __future__ import annotations

import errno
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from grpo_contract.errors import GRPOVerifyError, Problem
from harness.system.regular_file import unreadable_kind

MARKER = ".grpo-verify-run"
ENVIRONMENT = "environment.json"
EXPECTED_ENVIRONMENT = "expected-environment.json"
OP_LAUNCH = "op_launch"
"""In the environment: how the op launches its kernels, where it says so."""


class RunDirError(GRPOVerifyError):
    """A folder that cannot serve as a run directory."""

    code = "run_dir"
    title = "unusable run directory"


@dataclass(frozen=True)
class RunDir:
    """Paths, reads and writes below one run directory. Make one with `create`, `claim` or `open`."""

    path: Path

    @classmethod
    def create(cls, under: Path | None = None) -> RunDir:
        """A fresh directory with a unique name below `under` (made if absent), or in the temporary folder."""
        if under is not None:
            under.mkdir(parents=True, exist_ok=True)
        return cls._prepare(Path(tempfile.mkdtemp(prefix="grpo-verify-", dir=under)))

    @classmethod
    def claim(cls, path: Path) -> RunDir:
        """Take exactly `path`, which must be absent or an empty directory of this user.

        Raises RunDirError for a file, for a directory that holds anything (an earlier run included), and
        for a directory that belongs to someone else.
        """
        if not path.exists() and not path.is_symlink():
            path.mkdir(mode=0o700, parents=True)
        got = _why_unusable(path)
        if got:
            raise RunDirError(Problem("run_dir.claim", str(path), "an absent or empty directory of yours", got))
        return cls._prepare(path)

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """A directory that a launcher has prepared. Raises RunDirError when it was not."""
        if not (path / MARKER).is_file():
            got = "another directory" if path.is_dir() else "no directory"
            raise RunDirError(Problem("run_dir.open", str(path), "a directory prepared by grpo-verify", got))
        return cls(path.resolve())

    @classmethod
    def _prepare(cls, path: Path) -> RunDir:
        path = path.resolve()
        path.chmod(0o700)
        for name in ("status", "cases", "logs", "stacks"):
            (path / name).mkdir(mode=0o700)
        write_atomic(path / MARKER, "")
        return cls(path)

    @property
    def is_gone(self) -> bool:
        """Whether somebody has removed it, or begun to."""
        return not (self.path / MARKER).exists()

    @property
    def plan(self) -> Path:
        """Where the plan lies."""
        return self.path / "plan.json"

    @property
    def logs(self) -> Path:
        """The folder of everything that was printed."""
        return self.path / "logs"

    @property
    def launcher_log(self) -> Path:
        """What the launched command itself printed, stdout and stderr together."""
        return self.logs / "launcher.log"

    @property
    def rendezvous(self) -> Path:
        """The file through which torchrun agrees with itself."""
        return self.path / "rendezvous"

    @property
    def store(self) -> Path:
        """The file through which the ranks find each other."""
        return self.path / "store"

    def status(self, rank: int) -> Path:
        """Where rank `rank` says how far it is."""
        return self.path / "status" / f"rank-{rank}.json"

    def steps(self, rank: int) -> Path:
        """Where rank `rank` counts the collectives it entered: one little-endian 64-bit integer."""
        return self.path / "status" / f"rank-{rank}.step"

    def stack(self, rank: int) -> Path:
        """Where rank `rank` writes its stacks when asked."""
        return self.path / "stacks" / f"rank-{rank}.txt"

    def case(self, index: int) -> Path:
        """Where the result of case `index` lies."""
        return self.path / "cases" / f"{index:05d}.json"

    def case_indices(self) -> list[int]:
        """The cases that have a result so far, ascending."""
        names = (Path(name) for name in _listing(self.path / "cases"))
        return sorted(int(name.stem) for name in names if name.suffix == ".json" and name.stem.isdigit())

    def write_plan(self, text: str) -> None:
        """Store the plan."""
        write_atomic(self.plan, text)

    def write_case(self, index: int, text: str) -> None:
        """Store the result of case `index`."""
        write_atomic(self.case(index), text)


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step; the file is 0600."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_text(path: Path) -> str | None:
    """The text of `path`, or None when there is no such file. Raises OSError for anything else in its place."""
    try:
        if kind := unreadable_kind(path):
            raise OSError(errno.EINVAL, kind, str(path))
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _listing(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _why_unusable(path: Path) -> str | None:
    if not path.is_dir():
        return "not a directory"
    if hasattr(os, "getuid") and path.stat().st_uid != os.getuid():
        return "a directory of another user"
    names = _listing(path)
    if MARKER in names:
        return "an earlier run's directory (remove it, or give another)"
    return f"a directory that holds {len(names)} entries, {min(names)!r} among them" if names else None
