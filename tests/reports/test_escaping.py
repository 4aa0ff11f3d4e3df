"""What users name things never becomes markup, wherever it is shown."""

import re
from html import unescape
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from reports.escaping import for_command, for_command_property, for_markdown, for_xml, one_line, prose

NASTY = [
    "a|b `c` *d* _e_ __f__ [g](http://h) ![i](j) <k> &lt; &amp; \\ ~~l~~ $m$ {n} ^o^",
    "</code></details><script>alert(1)</script>",
    "@someone #123 :smile: https://example.com",
    "line\nbreak | ::error::x ##[error]y",
    "- not\n1. a list\n# nor a heading",
    "100% --> <!-- --!> a,b:c",
]


def test_one_line_keeps_what_can_be_seen() -> None:
    assert one_line("größe 日本 ✓") == "größe 日本 ✓"
    assert one_line("a\n\tb\x1b[31m\u202ec\x00") == "a  b\ufffd[31m\ufffdc\ufffd"


@given(st.text())
def test_xml_always_parses_back(text: str) -> None:
    text = text.encode("utf-8", "backslashreplace").decode()
    root = ElementTree.Element("a")
    root.text = for_xml(text)
    again = ElementTree.fromstring(ElementTree.tostring(root, encoding="utf-8")).text or ""
    assert again.replace("\n", "") == for_xml(text).replace("\r\n", "").replace("\r", "").replace("\n", "")


def test_control_characters_are_spelt_out_in_xml() -> None:
    assert for_xml("a\x00b\x1bc\ufffed\n") == "a\\x00b\\x1bc\\ufffed\n"


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("escape", [for_markdown, prose])
def test_markdown_shows_what_was_written_and_nothing_else(text: str, escape) -> None:
    page = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    html = page.render(f"| head |\n| --- |\n| {escape(text)} |\n")
    cell = re.search(r"<td>(.*)</td>", html)
    assert cell is not None
    assert html.count("<tr>") == 2
    inside = cell[1].removeprefix("<code>").removesuffix("</code>")
    assert "<" not in inside
    assert unescape(inside).replace("\u2060", "") == one_line(text).strip()


def test_prose_calls_upon_nobody() -> None:
    assert "@\u2060someone" in prose("@someone")
    assert "#\u2060123" in prose("#123")


def test_names_stay_readable_in_raw_markdown() -> None:
    assert for_markdown("per_sequence_kl, rank tp=1: 3-5") == "<code>per_sequence_kl, rank tp=1: 3-5</code>"
    assert for_markdown(" \n") == ""


def test_workflow_commands() -> None:
    assert for_command("50%\r\na:b,c") == "50%25%0D%0Aa:b,c"
    assert for_command_property("50%\r\na:b,c") == "50%25%0D%0Aa%3Ab%2Cc"
