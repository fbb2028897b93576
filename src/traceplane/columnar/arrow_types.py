"""Arrow types from their names in manifests (the inverse of `str(type)`), and rows cast to their declared types: a cast
that would lose a value fails and names the first such value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

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


class TypedColumn(Protocol):
    """A column with its type as Arrow spells it."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def nullable(self) -> bool: ...


def schema_of(columns: Iterable[TypedColumn]) -> pa.Schema | None:
    """None if the name of a type cannot be parsed."""
    fields = []
    for column in columns:
        type_ = type_of(column.type)
        if type_ is None:
            return None
        fields.append(pa.field(column.name, type_, column.nullable))
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


_DECLARED = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "date32[day]": "date",
    "timestamp[us, tz=UTC]": "timestamp",
    "timestamp[us]": "timestamp_ntz",
}


def declared_name(type_: pa.DataType) -> str:
    """The type as a DAG file declares it."""
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision}, {type_.scale})"
    if pa.types.is_list(type_):
        return f"array<{declared_name(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"map<{declared_name(type_.key_type)}, {declared_name(type_.item_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{', '.join(f'{field.name}: {declared_name(field.type)}' for field in type_)}>"
    return _DECLARED.get(str(type_), str(type_))


def _parts(text: str) -> Iterator[str]:
    """Splits at commas that are not inside brackets."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character in "<([") - (character in ">)]")
        if character == "," and depth == 0:
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
    """A value that its column's type cannot hold, and why the column has that type. People read `row`, the index, as a
    number from 1."""

    def __init__(
        self,
        column: str,
        value: Any,
        row: int,
        type_: pa.DataType,
        reason: str = "as the dataset declares it",
    ) -> None:
        super().__init__(
            f"column {column!r}, row {row + 1}: {str(value)[:200]!r} does not fit into {type_}, {reason}"
        )


def as_declared(schema: pa.Schema, columns: Iterable[TypedColumn]) -> pa.Schema:
    """The schema with the declared type of each column that can be cast to it. Other columns keep their type; the
    commit decides about them."""
    declared = {column.name: type_of(column.type) for column in columns}
    return pa.schema(
        [
            field.with_type(target)
            if (target := declared.get(field.name)) is not None and _castable(field.type, target)
            else field
            for field in schema
        ],
        schema.metadata,
    )


def cast(table: pa.Table, schema: pa.Schema, rows_before: int = 0) -> pa.Table:
    """The table with the types of `schema`, which `as_declared` derived from the table's own. Errors number rows from
    0, after `rows_before` earlier ones. Raises DoesNotFit."""
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


def _castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether the type can hold the same values; a safe cast decides for each value."""
    types = pa.types
    if types.is_dictionary(source):
        return source.value_type == target or _castable(source.value_type, target)
    if source == target or types.is_null(source):
        return True
    if types.is_integer(source):
        return bool(types.is_integer(target) or types.is_decimal(target) or types.is_floating(target))
    if types.is_decimal(source):
        return bool(types.is_decimal(target) or types.is_integer(target))
    if types.is_floating(source):
        return bool(
            types.is_integer(target) or (types.is_floating(target) and source.bit_width < target.bit_width)
        )
    if types.is_timestamp(source):
        return bool(types.is_timestamp(target) and (source.tz is None) == (target.tz is None))
    if types.is_date(source):
        return bool(types.is_date(target))
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    bytes_ = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(
        any(is_one(source) for is_one in kind) and any(is_one(target) for is_one in kind)
        for kind in (texts, bytes_)
    )


def _cast(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = compute.cast(column, column.type.value_type)
    if pa.types.is_integer(column.type) and pa.types.is_decimal(target):
        # Arrow requires room for every value of the integer type; the actual values may need less.
        digits = _MOST_DIGITS[str(column.type)] + target.scale
        roomy = pa.decimal128(digits, target.scale) if digits <= 38 else pa.decimal256(digits, target.scale)
        column = compute.cast(column, roomy)
    return compute.cast(column, target, safe=True)


def _first_misfit(column: pa.ChunkedArray, target: pa.DataType) -> int:
    """The position of the first value that cannot be cast, by binary search."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast(column.slice(low, middle - low), target)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
