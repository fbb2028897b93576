"""Arrow types from their names, as manifests carry them: the inverse of `str(type)`. And rows as their columns are
declared: cast where no value is lost, and refused by the first value that would be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as compute

_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (-?\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_NESTED = re.compile(r"(list|map|struct)<(.+)>")
_FIELD = re.compile(r"([^:]+): (.+)")
_MOST_DIGITS = {
    "int8": 3,
    "int16": 5,
    "int32": 10,
    "int64": 19,
    "uint8": 3,
    "uint16": 5,
    "uint32": 10,
    "uint64": 20,
}


def schema_of(columns: Iterable[Mapping[str, Any]]) -> pa.Schema | None:
    """None if a type is not one that can be read back from its name."""
    fields = []
    for column in columns:
        found = type_of(column["type"])
        if found is None:
            return None
        fields.append(pa.field(column["name"], found, column.get("nullable", True)))
    return pa.schema(fields) if fields else None


def type_of(name: str) -> pa.DataType | None:
    if match := _DECIMAL.fullmatch(name):
        make = pa.decimal128 if match[1] == "128" else pa.decimal256
        return make(int(match[2]), int(match[3]))
    if match := _TIMESTAMP.fullmatch(name):
        return pa.timestamp(match[1], match[2])
    if match := _NESTED.fullmatch(name):
        return _nested(match[1], list(_parts(match[2])))
    try:
        return pa.type_for_alias(
            {"halffloat": "float16", "float": "float32", "double": "float64"}.get(name, name)
        )
    except ValueError:
        return None


def _parts(text: str) -> Iterator[str]:
    """What stands between commas, those inside of brackets left alone."""
    depth, start = 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "<([") - (sign in ">)]")
        if sign == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


def _nested(kind: str, parts: list[str]) -> pa.DataType | None:
    names = ["", ""]
    if kind != "map":
        fields = [_FIELD.fullmatch(part) for part in parts]
        if None in fields:
            return None
        names, parts = [f[1] for f in fields if f], [f[2] for f in fields if f]
    types = [type_of(part.removesuffix(" not null")) for part in parts]
    if None in types or len(types) != {"list": 1, "map": 2}.get(kind, len(types)):
        return None
    if kind == "list":
        return pa.list_(types[0])
    if kind == "map":
        return pa.map_(*types)
    nullable = [not part.endswith(" not null") for part in parts]
    return pa.struct([pa.field(*field) for field in zip(names, types, nullable, strict=True)])


# --- rows as declared -------------------------------------------------------------------------------


class DoesNotFit(ValueError):
    """A value that its column's declared type cannot hold."""

    def __init__(self, column: str, value: Any, row: int, declared: pa.DataType) -> None:
        super().__init__(f"column {column!r}, row {row}: {str(value)[:200]!r} does not fit into {declared}")


def as_declared(schema: pa.Schema, columns: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """The schema, with the declared type of each column that can be cast to it. A column that cannot stays as it is:
    what to say of it is the commit's to decide."""
    declared = {column["name"]: type_of(column["type"]) for column in columns}
    return pa.schema(
        [
            field.with_type(wanted)
            if (wanted := declared.get(field.name)) is not None and _can_be(field.type, wanted)
            else field
            for field in schema
        ],
        schema.metadata,
    )


def cast(table: pa.Table, schema: pa.Schema, rows_before: int = 0) -> pa.Table:
    """The table with the types of `schema`, which `as_declared` made of its own. Rows are counted from 0, and
    `rows_before` came before these. Raises DoesNotFit."""
    for index, field in enumerate(schema):
        column = table.column(index)
        if column.type == field.type:
            continue
        try:
            column = _cast(column, field.type)
        except pa.ArrowInvalid:
            row = _first_misfit(column, field.type)
            raise DoesNotFit(field.name, column[row].as_py(), rows_before + row, field.type) from None
        table = table.set_column(index, field, column)
    return table


def _can_be(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values can be the same ones in another type; which of them are, a safe cast tells."""
    types = pa.types
    if types.is_dictionary(found):
        return found.value_type == wanted or _can_be(found.value_type, wanted)
    if found == wanted or types.is_null(found):
        return True
    if types.is_integer(found):
        return bool(types.is_integer(wanted) or types.is_decimal(wanted) or types.is_floating(wanted))
    if types.is_decimal(found):
        return bool(types.is_decimal(wanted) or types.is_integer(wanted))
    if types.is_floating(found):
        return bool(
            types.is_integer(wanted) or (types.is_floating(wanted) and found.bit_width < wanted.bit_width)
        )
    if types.is_timestamp(found):
        return bool(types.is_timestamp(wanted) and (found.tz is None) == (wanted.tz is None))
    if types.is_date(found):
        return bool(types.is_date(wanted))
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    bytes_ = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(
        any(is_one(found) for is_one in kind) and any(is_one(wanted) for is_one in kind)
        for kind in (texts, bytes_)
    )


def _cast(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = compute.cast(column, column.type.value_type)
    if pa.types.is_integer(column.type) and pa.types.is_decimal(wanted):
        # Arrow asks for room for every value of the integer type; those that are there may need less.
        digits = _MOST_DIGITS[str(column.type)] + wanted.scale
        roomy = pa.decimal128(digits, wanted.scale) if digits <= 38 else pa.decimal256(digits, wanted.scale)
        column = compute.cast(column, roomy)
    return compute.cast(column, wanted, safe=True)


def _first_misfit(column: pa.ChunkedArray, wanted: pa.DataType) -> int:
    """The position of the first value that cannot be cast, found by halves."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast(column.slice(low, middle - low), wanted)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
