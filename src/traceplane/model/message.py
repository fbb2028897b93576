"""What is sent over a channel, and how long its parts may be."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum

Value = str | int | float | bool | Decimal | datetime | date | None
"""What a column of a subject may hold."""
JsonScalar = str | int | float | bool | None

_KEY = re.compile(r"[A-Za-z0-9_:-]{1,200}")
"""Fits into a header as it is. No dot: a signature is made over the key, a dot and more."""
_LINK = re.compile(r"https?://[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]{1,2000}")
LONGEST_TITLE, LONGEST_TEXT, LONGEST_NAME, LONGEST_VALUE, MOST_VALUES = 1_000, 20_000, 100, 500, 40
_HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Control characters, halves of characters, and marks that change the direction of writing: what is read would not be
what was sent."""


class Kind(StrEnum):
    ALERT = "alert"
    ACKNOWLEDGEMENT = "acknowledgement"
    RETRACTION = "retraction"


class Severity(StrEnum):
    """Those of PagerDuty, which other services know too."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Message:
    key: str
    """Stays the same however often the message is sent; no other message has it, its retraction neither."""
    incident: str
    """What an alert has in common with its acknowledgement and its retraction."""
    kind: Kind
    alert: str
    severity: Severity
    title: str
    text: str
    event_time: datetime
    subject: Mapping[str, Value] = field(default_factory=dict)
    fields: Mapping[str, Value] = field(default_factory=dict)
    link: str | None = None
    count: int = 1
    """How many alerts it stands for, if they were grouped."""
    dag: str | None = None
    """Unset for the platform's own alerts."""
    position: str | None = None
    """Of the row, as scopes are written. Unset for several positions, and for partitions by name: a name may be
    personal data, and nobody was asked whether it may be sent."""

    def __post_init__(self) -> None:
        for name, value in (("key", self.key), ("incident", self.incident)):
            if not _KEY.fullmatch(value):
                raise ValueError(f"the {name} of a message cannot be {value[:200]!r}")
        if self.event_time.tzinfo is None:
            raise ValueError("the event time of a message needs a time zone")

    @property
    def headline(self) -> str:
        match self.kind:
            case Kind.ALERT:
                return self.title
            case Kind.ACKNOWLEDGEMENT:
                return f"Acknowledged: {self.title}"
            case Kind.RETRACTION:
                return f"Retracted: {self.title}"

    def facts(self) -> list[tuple[str, str]]:
        """Names and texts, in the order in which people read them."""
        facts = [("severity", str(self.severity))]
        facts += [(name, as_text(value)) for name, value in (*self.subject.items(), *self.fields.items())]
        if self.count > 1:
            facts.append(("grouped alerts", str(self.count)))
        return [*facts, ("time", as_text(self.event_time))]

    def bounded(self) -> Message:
        """The same, with every part of a length that all channels can take and of characters that do not deceive."""
        link = self.link
        return replace(
            self,
            alert=_line(self.alert, LONGEST_NAME),
            title=_line(self.title, LONGEST_TITLE),
            text=_cut_and_cleaned(self.text, LONGEST_TEXT),
            subject=_bounded(self.subject),
            fields=_bounded(self.fields),
            link=link if link is not None and _LINK.fullmatch(link) else None,
        )


def as_text(value: Value) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return moment.isoformat() + ("" if value.tzinfo is None else "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}" if value.is_finite() and abs(value.adjusted()) < 100 else str(value)
        case _:
            return str(value)


def as_json(value: Value) -> JsonScalar:
    """Decimals become texts, so that no receiver rounds them; a number that JSON does not have becomes null."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case str() | bool() | int() | float() | None:
            return value
        case _:
            return as_text(value)


def shortened(text: str, longest: int) -> str:
    """The text, or its beginning with a note of how much is missing."""
    if len(text) <= longest:
        return text
    note = f"… ({len(text)} characters)"
    return text[: max(0, longest - len(note))] + note[:longest]


def cleaned(text: str) -> str:
    """Without control characters other than line breaks and tabs, and without halves of characters."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii() and text.isprintable():
        return text
    return _HARMFUL.sub("\ufffd", text)


def short_values(values: Mapping[str, Value]) -> dict[str, Value]:
    """The same names, with values of a length that all channels can take."""
    return {name: _short(value) for name, value in values.items()}


def _cut_and_cleaned(text: str, longest: int) -> str:
    """In this order: a text may have millions of characters."""
    return cleaned(shortened(text, longest))


def _line(text: str, longest: int) -> str:
    return " ".join(_cut_and_cleaned(text, longest).split())


def _bounded(values: Mapping[str, Value]) -> dict[str, Value]:
    bounded: dict[str, Value] = {}
    # If there are more, the last one says how many.
    most = MOST_VALUES if len(values) <= MOST_VALUES else MOST_VALUES - 1
    for name, value in list(values.items())[:most]:
        bounded[_line(name, LONGEST_NAME)] = _short(value)
    if len(values) > most:
        bounded["…"] = f"and {len(values) - most} more"
    return bounded


def _short(value: Value) -> Value:
    match value:
        case str():
            return _cut_and_cleaned(value, LONGEST_VALUE)
        case None | bool() | float() | date():  # a datetime is a date
            return value
        case int() if value.bit_length() > 1000:
            return shortened(hex(value), LONGEST_VALUE)  # in decimal, it takes too long
        case int():
            return value
        case Decimal():
            text = as_text(value)
            return value if len(text) <= LONGEST_VALUE else shortened(text, LONGEST_VALUE)
        case _:  # JSON has lists and objects too
            return _cut_and_cleaned(str(value), LONGEST_VALUE)
