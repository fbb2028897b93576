"""Messages: every part has a length and characters that all channels can take."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.delivery.messages import COLUMNS, MESSAGE
from traceplane.delivery.templates import BEFORE_WORDING, TextTemplate, fillers_of, known_names
from traceplane.errors import InvalidInput
from traceplane.model.message import (
    LONGEST_TEXT,
    LONGEST_TITLE,
    LONGEST_VALUE,
    MOST_VALUES,
    Kind,
    Value,
    as_json,
    as_text,
    cleaned,
    shortened,
)


@pytest.mark.parametrize("key", ["", "a b", "a\r\nb", "a.b", "é", "x" * 201, "a\x00"])
def test_a_key_fits_into_a_header_and_a_signature(key: str) -> None:
    with pytest.raises(ValueError, match="of a message cannot be"):
        replace(MESSAGE, key=key)
    with pytest.raises(ValueError, match="of a message cannot be"):
        replace(MESSAGE, incident=key)


def test_an_event_time_has_a_time_zone() -> None:
    with pytest.raises(ValueError, match="time zone"):
        replace(MESSAGE, event_time=datetime(2026, 1, 1))  # noqa: DTZ001


def test_what_is_too_long_is_cut_visibly() -> None:
    huge = replace(
        MESSAGE,
        title="t" * 10**6,
        text="é" * 10**6,
        subject={f"c{number}": "v" * 10**5 for number in range(1000)},
        fields={"n" * 10**5: 1, "big": 1 << 10**6, "long": Decimal("1." + "1" * 10**5)},
    ).bounded()
    assert len(huge.title) == LONGEST_TITLE
    assert huge.title.endswith("… (1000000 characters)")
    assert len(huge.text) == LONGEST_TEXT
    assert len(huge.subject) == MOST_VALUES
    assert huge.bounded() == huge
    assert huge.subject["…"] == f"and {1000 - MOST_VALUES + 1} more"
    assert len(str(huge.subject["c0"])) == LONGEST_VALUE
    assert all(len(name) <= 100 for name in huge.fields)
    assert all(len(as_text(value)) <= LONGEST_VALUE for value in huge.fields.values())


def test_characters_that_deceive_are_replaced() -> None:
    odd = replace(MESSAGE, title="a\r\n\tb\x1b[31m", text="x\x00\u202ey\ud800\n\tz\r\nw").bounded()
    assert odd.title == "a b\ufffd[31m"
    assert odd.text == "x\ufffd\ufffdy\ufffd\n\tz\nw"


@pytest.mark.parametrize(
    "link",
    [
        "javascript:alert(1)",
        "https://x.example/\u2028",
        "https://x.example/\u202e",
        "https://é.example/",
        "https://x.example/|y",
        "https://x.example/>",
        "https://x\nexample",
        "x",
        "",
    ],
)
def test_a_link_that_is_none_is_left_out(link: str) -> None:
    assert replace(MESSAGE, link=link).bounded().link is None
    assert MESSAGE.bounded().link == MESSAGE.link


@given(st.text(), st.integers(0, 50))
def test_a_shortened_text_fits(text: str, longest: int) -> None:
    short = shortened(text, longest)
    assert len(short) <= longest or short == text
    assert (short == text) is (len(text) <= longest)
    cleaned(text).encode()


@pytest.mark.parametrize(
    ("value", "text", "json"),
    [
        (None, "", None),
        (True, "true", True),
        (7, "7", 7),
        (2**200, str(2**200), 2**200),
        (0.5, "0.5", 0.5),
        (float("nan"), "nan", None),
        (float("inf"), "inf", None),
        (Decimal("1.10"), "1.10", "1.10"),
        (Decimal("1E+3"), "1000", "1000"),
        (Decimal("1E+999999"), "1E+999999", "1E+999999"),
        (Decimal("NaN"), "NaN", "NaN"),
        (date(2026, 1, 2), "2026-01-02", "2026-01-02"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00Z", "2026-01-02T03:00:00Z"),
        (
            datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=2))),
            "2026-01-02T01:00:00Z",
            "2026-01-02T01:00:00Z",
        ),
    ],
)
def test_values_as_texts_and_json(value: Value, text: str, json: object) -> None:
    assert as_text(value) == text
    assert as_json(value) == json
    msgspec.json.encode(as_json(value))


def test_titles_and_texts_are_filled_from_columns() -> None:
    names = known_names(COLUMNS, ["volume"], fixed=BEFORE_WORDING)
    template = TextTemplate.parse("{{{ticker}}} {price} {fields.volume} {title} {severity} {subject}", names)
    fillers = fillers_of(MESSAGE)
    assert template.filled({**fillers, "title": "column"}) == (
        "{AAPL} 101.10 7 column critical ticker: AAPL, price: 101.10, title: a column"
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("${secret:token}", "delivery.secret_in_text"),
        ("${secret:1}", "delivery.bad_reference"),
        ("{text}", "delivery.unknown_placeholder"),
        ("{tick", "delivery.bad_template"),
        ("x" * 30_000, "delivery.bad_template"),
    ],
)
def test_titles_and_texts_are_checked_when_they_are_defined(text: str, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        TextTemplate.parse(text, known_names(COLUMNS, fixed=BEFORE_WORDING))
    assert caught.value.code == code


@given(st.text(alphabet=st.sampled_from("{}$abc: secrt\n"), max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        template = TextTemplate.parse(text, {"a", "b"})
        template.filled({"a": "{b}", "b": "${secret:a}"})


@given(st.text())
def test_text_without_braces_stays_as_it_is(text: str) -> None:
    plain = cleaned(text)
    escaped = plain.replace("{", "{{").replace("}", "}}")
    assert TextTemplate.parse(escaped, set()).filled({}) == plain


def test_people_can_tell_a_retraction() -> None:
    assert replace(MESSAGE, kind=Kind.RETRACTION).headline == "Retracted: AAPL dropped"
    assert replace(MESSAGE, kind=Kind.ACKNOWLEDGEMENT).headline == "Acknowledged: AAPL dropped"
    assert ("grouped alerts", "12") in replace(MESSAGE, count=12).facts()
