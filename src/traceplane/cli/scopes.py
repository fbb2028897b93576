"""Parses scopes and ranges from the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

import click

from traceplane.errors import InvalidInput
from traceplane.wire.scalars import Scope

_DATE = re.compile(r"[1-9][0-9]{3}-(0[1-9]|1[0-2])")
"""A month, which could be a partition from one position to another too."""

_NUMBER = re.compile(r"-?[0-9]{1,19}")

_PARTITION = re.compile(r"(-?[0-9]+)-(-?[0-9]+)")

Given = TypeVar("Given", str, str | None, tuple[str, ...])

MAY_BE_NEGATIVE = {"ignore_unknown_options": True}
"""The context settings of a command with scopes, whose arguments pass `without_options`: click hands on what looks like
an option and is none."""


def without_options(context: click.Context, _: click.Parameter, given: Given) -> Given:
    for text in (given,) if isinstance(given, str) else given or ():
        if text.startswith("-") and not text[1:2].isdigit():
            options = [name for parameter in context.command.params for name in parameter.opts]
            raise click.NoSuchOption(text, possibilities=get_close_matches(text, options), ctx=context)
    return given


@dataclass(frozen=True, slots=True)
class NamedPartitions:
    """Partitions by name, from the first to the last; the platform knows which there are between them."""

    first: str
    last: str


def parse_scopes(text: str) -> Sequence[int] | Sequence[Scope] | NamedPartitions:
    """Cursors as a range of numbers, one partition, or named ones."""
    first, dots, last = text.partition("..")
    if not _NUMBER.fullmatch(first) or (dots and not _NUMBER.fullmatch(last)):
        if partition := _PARTITION.fullmatch(text):
            start, end = int(partition[1]), int(partition[2])
            if not _DATE.fullmatch(text):
                _check_order(text, start, end, "-")
                return [Scope(partition_key=text, start=start, end=end)]
        if not first or (dots and not last) or text.split() != [text]:
            raise InvalidInput(
                "cli.bad_scope",
                "a scope must be a cursor, a range A..B, a partition A-B, or the name of one",
                value=text,
                next_step="for example 1207, 1200..1299, 1200-1299, 2026-11-16 or 2026-11-01..2026-11-16",
            )
        return NamedPartitions(first, last or first)
    start, end = int(first), int(last or first)
    _check_order(text, start, end, "..")
    return range(start, end + 1)


def _check_order(text: str, first: int, last: int, between: str) -> None:
    if first > last:
        raise InvalidInput(
            "cli.empty_range",
            "the range ends before it starts",
            value=text,
            next_step=f"write the smaller position first: {last}{between}{first}",
        )


def parse_ends(text: str) -> tuple[str, str]:
    """First and last position or partition of a scope (3, 0-6, 2026-11-16) or a range (0..6)."""
    scopes = parse_scopes(text)
    if isinstance(scopes, NamedPartitions):
        return scopes.first, scopes.last
    first, last = scopes[0], scopes[-1]
    return (
        str(first if isinstance(first, int) else first.first),
        str(last if isinstance(last, int) else last.last),
    )


def parse_range(text: str) -> tuple[str, str]:
    """First and last position or partition."""
    first, _, last = text.partition("..")
    if not first or not last:
        raise InvalidInput(
            "cli.bad_range",
            "a range must be A..B, its first and last position or partition",
            value=text,
            next_step="for example 1200..1299 or 2026-11-01..2026-11-16",
        )
    return first, last
