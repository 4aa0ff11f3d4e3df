"""What an error says. Foreign code may not even let it be asked, and may say what no stream can carry."""

from __future__ import annotations

import traceback
from pathlib import Path


def message_of(exc: BaseException) -> str:
    """What `exc` says, or where it was raised when it cannot be made to say anything."""
    try:
        return encodable(str(exc))
    except Exception as error:
        return f"no message, as its __str__ raises {type(error).__name__}; raised at {last_frame(exc)}"


def named(exc: BaseException) -> str:
    """The type of `exc` and what it says, if anything."""
    return f"{type(exc).__name__}: {message_of(exc)}".rstrip(": ")


def last_frame(exc: BaseException) -> str:
    """Where `exc` was raised, `name (file.py:line)`."""
    frames = traceback.extract_tb(exc.__traceback__)
    return f"{frames[-1].name} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else "nowhere"


def encodable(text: str) -> str:
    """`text` with lone surrogates as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
