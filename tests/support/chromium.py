"""A page in headless Chromium: its document after loading, and what the console said."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium on PATH; apt-get install chromium brings it"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
)
SECONDS = 90


@dataclass(frozen=True)
class Shown:
    """What a browser made of a page."""

    document: str
    console: list[str]


def executable() -> str | None:
    """The browser, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def show(page: Path, *flags: str) -> Shown:
    """Load `page` from the disk with a fresh profile."""
    browser = executable()
    assert browser is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *FLAGS, *flags, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=SECONDS)
        finally:
            _end_group(process.pid)
    return Shown(out, [line for line in err.splitlines() if "CONSOLE" in line])


def _end_group(leader: int) -> None:
    """Helpers of the browser may outlive it."""
    assert sys.platform != "win32"
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return
