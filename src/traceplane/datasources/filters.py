"""Filters that Spark pushes down. They only narrow what is read, so whatever is not understood is left to Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

_SIGNS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a column of whole numbers, both ends included; None: unlimited."""

    first: int | None = None
    last: int | None = None

    def within(self, first: int, last: int) -> tuple[int, int]:
        return (
            first if self.first is None else max(first, self.first),
            last if self.last is None else min(last, self.last),
        )


def bounds(filters: Iterable[Filter], column: str) -> Bounds:
    first: list[int] = []
    last: list[int] = []
    for one in filters:
        name, value = _column(one), getattr(one, "value", None)
        if name != column:
            continue
        if isinstance(one, In):
            numbers = [number for number in one.value if type(number) is int]
            if numbers:
                first.append(min(numbers))
                last.append(max(numbers))
        elif type(value) is int:
            match one:
                case EqualTo():
                    first.append(value)
                    last.append(value)
                case GreaterThan():
                    first.append(value + 1)
                case GreaterThanOrEqual():
                    first.append(value)
                case LessThan():
                    last.append(value - 1)
                case LessThanOrEqual():
                    last.append(value)
    return Bounds(max(first, default=None), min(last, default=None))


def as_sql(one: Filter) -> str | None:
    """The same condition in SQL of the query service; None if it might mean something else there."""
    name = _column(one)
    if name is None:
        return None
    column = quoted(name)
    match one:
        case IsNull():
            return f"{column} is null"
        case IsNotNull():
            return f"{column} is not null"
        case In():
            values = [_literal(value) for value in one.value]
            return None if None in values or not values else f"{column} in ({', '.join(map(str, values))})"
    sign, value = _SIGNS.get(type(one)), _literal(getattr(one, "value", None))
    return None if sign is None or value is None else f"{column} {sign} {value}"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _column(one: Filter) -> str | None:
    attribute = getattr(one, "attribute", None)
    return attribute[0] if isinstance(attribute, tuple) and len(attribute) == 1 else None


def _literal(value: object) -> str | None:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case Decimal() if value.is_finite():
            return f"{value:f}"
        case str() if "\0" not in value:
            return "'" + value.replace("'", "''") + "'"
        case date() if not isinstance(value, datetime):
            return f"date '{value.isoformat()}'"
    return None  # fractions and times are compared by other rules in other engines
