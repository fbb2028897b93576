"""Parses scopes and ranges from the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from traceplane.errors import InvalidInput
from traceplane.wire.scalars import Scope

_DATE = re.compile(r"[1-9][0-9]{3}-(0[1-9]|1[0-2])(-.*|T.*)?")

_ABOUT_DATES = (
    "count days, or another unit, from a start date of your own: see docs/guides/scopes_and_dates.md"
)


def parse_scopes(text: str) -> Sequence[int] | Sequence[Scope]:
    """Cursors as a range of numbers, or one partition."""
    if _DATE.fullmatch(text):
        raise InvalidInput(
            "cli.bad_scope", "a scope must be a whole number, not a date", value=text, next_step=_ABOUT_DATES
        )
    try:
        if ".." in text:
            first, last = (int(part) for part in text.split("..", 1))
            _check_order(text, first, last, "..")
            return range(first, last + 1)
        if text.lstrip("-").isdigit():
            return range(int(text), int(text) + 1)
        first, last = (int(part) for part in text.split("-", 1))
        _check_order(text, first, last, "-")
        return [Scope(partition_key=text, start=first, end=last)]
    except ValueError:
        raise InvalidInput(
            "cli.bad_scope",
            "a scope must be a cursor, a range A..B of cursors, or a partition A-B",
            value=text,
            next_step="for example 1207, 1200..1299 or 1200-1299",
        ) from None


def _check_order(text: str, first: int, last: int, between: str) -> None:
    if first > last:
        raise InvalidInput(
            "cli.empty_range",
            "the range ends before it starts",
            value=text,
            next_step=f"write the smaller position first: {last}{between}{first}",
        )


def parse_positions(text: str) -> tuple[int, int]:
    """First and last position of a cursor (3), a partition (0-6) or a range (0..6)."""
    scopes = parse_scopes(text)
    first, last = scopes[0], scopes[-1]
    return (
        first if isinstance(first, int) else first.first,
        last if isinstance(last, int) else last.last,
    )


def parse_range(text: str) -> tuple[int, int]:
    try:
        start, end = (int(part) for part in text.split(":"))
    except ValueError:
        raise InvalidInput(
            "cli.bad_range",
            "a range must be A:B, its first and last position",
            value=text,
            next_step=_ABOUT_DATES if _DATE.match(text) else "for example 1200:1299",
        ) from None
    return start, end
