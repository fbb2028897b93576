"""Parses scopes and ranges from the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TypeVar

import click

from traceplane.errors import InvalidInput
from traceplane.wire.scalars import Scope

_DATE = re.compile(r"[1-9][0-9]{3}-(0[1-9]|1[0-2])(-.*|T.*)?")

_PARTITION = re.compile(r"(-?[0-9]+)-(-?[0-9]+)")

Given = TypeVar("Given", str, str | None, tuple[str, ...])

_ABOUT_DATES = (
    "count days, or another unit, from a start date of your own: see docs/guides/scopes_and_dates.md"
)

MAY_BE_NEGATIVE = {"ignore_unknown_options": True}
"""The context settings of a command with scopes, whose arguments pass `without_options`: click hands on what looks like
an option and is none."""


def without_options(context: click.Context, _: click.Parameter, given: Given) -> Given:
    for text in (given,) if isinstance(given, str) else given or ():
        if text.startswith("-") and not text[1:2].isdigit():
            options = [name for parameter in context.command.params for name in parameter.opts]
            raise click.NoSuchOption(text, possibilities=get_close_matches(text, options), ctx=context)
    return given


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
        if (partition := _PARTITION.fullmatch(text)) is None:
            raise ValueError
        first, last = int(partition[1]), int(partition[2])
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
