"""JSON values as the types that a dataset declares: exactly, or not at all.

JSON has no dates, times or decimals, and forms have only text, so text becomes what the column is. Nothing is rounded.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from traceplane.columnar.arrow_types import declared_name

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ValueUnfit(ValueError):
    """A value that a type cannot hold."""


def converted(value: Any, type_: pa.DataType) -> Any:
    """What Arrow takes for a value of this type; raises `ValueUnfit`."""
    if value is None:
        return None
    try:
        return _converted(value, type_)
    except (ValueError, OverflowError, InvalidOperation, RecursionError):
        raise ValueUnfit(f"{_shown(value)} does not fit into {declared_name(type_)}") from None


def _converted(value: Any, type_: pa.DataType) -> Any:
    types = pa.types
    if types.is_string(type_):
        return value if isinstance(value, str) else as_json(value)
    if types.is_boolean(type_):
        return _boolean(value)
    if types.is_integer(type_):
        return _within(_integer(value), type_.bit_width)
    if types.is_decimal(type_):
        return _exact(_number(value), type_.precision, type_.scale)
    if types.is_floating(type_):
        return _float(value)
    if types.is_timestamp(type_):
        return _moment(value, with_zone=type_.tz is not None)
    if types.is_date(type_):
        return date.fromisoformat(_text(value))
    if types.is_binary(type_):
        return base64.b64decode(_text(value), validate=True)
    return _nested(value, type_)


def _nested(value: Any, type_: pa.DataType) -> Any:
    types = pa.types
    if types.is_list(type_) and isinstance(value, list):
        return [converted(item, type_.value_type) for item in value]
    if types.is_map(type_) and isinstance(value, dict):
        return [(converted(k, type_.key_type), converted(v, type_.item_type)) for k, v in value.items()]
    if types.is_struct(type_) and isinstance(value, dict):
        return {field.name: converted(value.get(field.name), field.type) for field in type_}
    raise ValueError


def as_json(value: Any) -> str:
    """Decimals keep all their digits."""
    match value:
        case Decimal():
            return str(value)
        case dict():
            return "{" + ",".join(f"{as_json(name)}:{as_json(item)}" for name, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(as_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}[value] if value in ("true", "false") else _no()


def _integer(value: Any) -> int:
    number = _number(value)
    return int(number) if number == number.to_integral_value() else _no()


def _number(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise ValueError
    number = Decimal(value)
    return number if number.is_finite() and abs(number.adjusted()) < 1000 else _no()


def _within(number: int, bits: int) -> int:
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else _no()


def _exact(number: Decimal, precision: int, scale: int) -> Decimal:
    """The number without zeros at its end, which Arrow would count, if a decimal of this size holds its digits."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    zeros = next((n for n, digit in enumerate(reversed(digits)) if digit), None)
    if zeros is None:
        return Decimal(0)
    exponent += zeros
    fits = -exponent <= scale and number.adjusted() < precision - scale
    return Decimal((sign, digits[: len(digits) - zeros], exponent)) if fits else _no()


def _float(value: Any) -> float:
    number = float(_number(value))
    return number if math.isfinite(number) else _no()


def _moment(value: Any, *, with_zone: bool) -> datetime:
    """ISO 8601; a number is seconds since 1970, where there is a time zone."""
    if with_zone and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return _EPOCH + timedelta(microseconds=_integer(Decimal(value) * 1_000_000))
    moment = datetime.fromisoformat(_text(value))
    return moment if (moment.tzinfo is not None) == with_zone else _no()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _no()


def _no() -> Any:
    raise ValueError


def _shown(value: Any) -> str:
    """What kind of value it is, and not the value: bodies may hold what logs must not."""
    match value:
        case bool():
            return "true or false"
        case int() | Decimal():
            return "a number"
        case str():
            return f"a text of {len(value)} characters"
        case list():
            return "a list"
    return "an object"
