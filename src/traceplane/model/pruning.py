"""Which files can hold rows of a value, by what is known of their columns.

A file is left out only if its statistics prove that it has no such row. Bounds are compared only where JSON and
the column order values alike: whole numbers, doubles, text and booleans; not single floats, which are rounded,
nor dates and decimals in their written form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NUMBER = re.compile(r"u?int(8|16|32|64)|double")
_TEXT = {"string", "large_string", "string_view"}


def may_hold(file: Mapping[str, Any], where: Mapping[str, Any], types: Mapping[str, str]) -> bool:
    """Whether a file can have a row that equals `where` in all its columns; `types` are Arrow's."""
    statistics = file.get("statistics") or {}
    return all(
        _may_equal(statistics[column], value, types.get(column), file["rows"])
        for column, value in where.items()
        if column in statistics and value is not None
    )


def _may_equal(known: Mapping[str, Any], value: Any, type_: str | None, rows: int) -> bool:
    if known.get("null_count") == rows:
        return False
    if not _comparable(value, type_):
        return True
    low, high = known.get("min"), known.get("max")
    return not ((_comparable(low, type_) and value < low) or (_comparable(high, type_) and value > high))


def _comparable(value: Any, type_: str | None) -> bool:
    match value:
        case bool():
            return type_ == "bool"
        case int() | float():
            return type_ is not None and _NUMBER.fullmatch(type_) is not None
        case str():
            return type_ in _TEXT
        case _:
            return False
