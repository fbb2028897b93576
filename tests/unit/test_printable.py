"""Text for a terminal: what would control it is written out, and nothing else changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceplane.model.printable import json_text, many_lines, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Zürich, 東京, 🙂 → ok", "Zürich, 東京, 🙂 → ok"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x1b]52;c;ZXZpbA==\x07", r"\x1b]52;c;ZXZpbA==\x07"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x7f\x85\x9b", r"\x7f\x85\x9b"),
        ("\u202eabc\u2066\u200f\u2028", r"\u202eabc\u2066\u200f\u2028"),
        ("\U000e0001\ud800", r"\U000e0001\ud800"),
    ],
)
def test_a_line_has_only_what_can_be_printed(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_lines_stay_lines() -> None:
    assert many_lines("Traceback\n  \x1b[2J\r\n") == "Traceback\n  \\x1b[2J\\r\n"


@given(st.text())
def test_whatever_it_is(text: str) -> None:
    assert one_line(text).isprintable()
    assert all(line.isprintable() for line in many_lines(text).split("\n"))


@given(st.dictionaries(st.text(), st.lists(st.text())))
def test_json_means_the_same_and_can_be_printed(value: object) -> None:
    written = json_text(json.dumps(value, ensure_ascii=False, indent=2))
    assert json.loads(written) == value
    assert all(line.isprintable() for line in written.split("\n"))
