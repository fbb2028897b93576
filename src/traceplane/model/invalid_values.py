"""What is wrong with a value, in words: the field and what it must be, from the text that msgspec gives.

Expected `int`, got `str` - at `$.events[0].scope.cursor`
`events[0].scope.cursor` must be a whole number, not text
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
    "object": "an object",
    "array": "a list",
    "uuid": "a UUID",
    "datetime": "a time",
    "date": "a date",
    "bytes": "base64 text",
}
_WRONG_TYPE = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_BOUND = re.compile(r"Expected `([^`]+)` (>=|<=|>|<) (\S+)")
_LENGTH = re.compile(r"Expected `([^`]+)` of length (>=|<=) (\d+)")
_PATTERN = re.compile(r"Expected `str` matching regex (.+)", re.DOTALL)
_LACKING = re.compile(r"Object missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_ENUM = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_INVALID = re.compile(r"Invalid (UUID|date|RFC3339 encoded datetime|base64 encoded string)")
_AT = re.compile(r"(.*) - at `(?:key in )?(\$.*)`", re.DOTALL)
_COMPARED = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}

Options = Callable[[str], Sequence[str]]


def in_words(error: Exception | str, options: Options | None = None) -> str:
    """`options` returns the values that a place may have, as far as they are few. What is not msgspec's own text, such
    as a check of a type's own, stays as it is."""
    text, place = str(error), ""
    if at := _AT.fullmatch(text):
        text, place = at[1], field_at(at[2])
    subject = f"`{place}`" if place else "it"
    if match := _WRONG_TYPE.fullmatch(text):
        return f"{subject} must be {_kinds(match[1])}, not {_kinds(match[2])}"
    if match := _LENGTH.fullmatch(text):
        unit = "items" if match[1] == "array" else "fields" if match[1] == "object" else "characters"
        return f"{subject} must have {_COMPARED[match[2]]} {_counted(match[3], unit)}"
    if match := _BOUND.fullmatch(text):
        return f"{subject} must be {_COMPARED[match[2]]} {match[3]}"
    if match := _PATTERN.fullmatch(text):
        return f"{subject} must be text that matches {match[1]}"
    if match := _LACKING.fullmatch(text):
        return f"`{f'{place}.' if place else ''}{match[1]}` is missing"
    if match := _UNKNOWN.fullmatch(text):
        return f"there is no field `{f'{place}.' if place else ''}{match[1]}`"
    if match := _ENUM.fullmatch(text):
        allowed = options(place) if options is not None else ()
        return (
            f"{subject} must be one of {', '.join(allowed)}" if allowed else f"{subject} cannot be {match[1]}"
        )
    if match := _INVALID.fullmatch(text):
        kinds = {"UUID": "a UUID", "date": "a date", "base64 encoded string": "base64 text"}
        return f"{subject} must be {kinds.get(match[1], 'a time such as 2026-01-31T12:00:00Z')}"
    return f"{text} (at `{place}`)" if place else text


def field_at(path: str) -> str:
    """msgspec's `$.tasks[0].name` as people write it; empty for the whole."""
    return path.removeprefix("$").removeprefix(".")


def _kinds(types: str) -> str:
    # A field that may be null may be left out, which is what people do.
    return " or ".join(_TYPES.get(one, one) for one in types.removesuffix(" | null").split(" | "))


def _counted(number: str, unit: str) -> str:
    return f"{number} {unit.removesuffix('s') if number == '1' else unit}"
