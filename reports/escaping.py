"""User-made text made harmless: on one line, in XML, in Markdown and in GitHub workflow commands."""

import re

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKUP = re.compile(r"[\\`*\[\]<>|~&$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)")
_REFERENCE = re.compile(r"[@#]")
_COMMAND_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_COMMAND_PROPERTY = {**_COMMAND_DATA, ":": "%3A", ",": "%2C"}


def one_line(text: str) -> str:
    """Return `text` on one line: blanks for white space, U+FFFD for what else cannot be seen."""
    return text if text.isprintable() else "".join(map(_visible, text))


def for_xml(text: str) -> str:
    r"""Return `text` with each character that XML 1.0 cannot carry spelt out, as \x1b."""
    return _NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def for_markdown(text: str) -> str:
    """Return `text` as inline code in Markdown that shows it as it is, in a table cell too.

    Punctuation becomes a numeric reference, which is never markup. GitHub looks for no mentions, issue numbers and
    emoji names inside `<code>`.
    """
    shown = _without_markup(one_line(text).strip())
    return f"<code>{shown}</code>" if shown else ""


def prose(text: str) -> str:
    """Return `text` as running Markdown that shows it as it is and calls upon nobody."""
    return _without_markup(_REFERENCE.sub(lambda found: f"{found[0]}\u2060", one_line(text)))


def for_command(text: str) -> str:
    """Return `text` as the message of a workflow command."""
    return _replaced(text, _COMMAND_DATA)


def for_command_property(text: str) -> str:
    """Return `text` as a property, such as the title, of a workflow command."""
    return _replaced(text, _COMMAND_PROPERTY)


def _without_markup(text: str) -> str:
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", text)


def _replaced(text: str, codes: dict[str, str]) -> str:
    return "".join(codes.get(char, char) for char in text)


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char.isspace() else "\ufffd"
