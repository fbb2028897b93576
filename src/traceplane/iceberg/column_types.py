"""Columns as Iceberg's.

Files of datasets have no field ids: a column is its name, in every file and every version. So an id is computed from
the name, and is the same wherever the column is; readers find it in a file by the table's name mapping.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from traceplane.model.dataset_schema import SchemaColumn

if TYPE_CHECKING:
    import pyarrow as pa

_IDS = 1 << 30
_DICTIONARY = re.compile(r"dictionary<values=(.+), indices=\w+, ordered=[01]>")


class NoIcebergType(ValueError):
    """A column whose values Iceberg cannot have."""

    def __init__(self, column: str, type_: str) -> None:
        super().__init__(f"the column {column} has the type {type_}")
        self.column, self.type = column, type_


@dataclass(frozen=True, slots=True)
class IcebergColumns:
    """`fields` and `names` are JSON, as the metadata of a table has them."""

    fields: list[dict[str, Any]]
    names: list[dict[str, Any]]
    """The name mapping."""
    last_id: int
    plain: dict[str, tuple[int, str]]
    """Of columns that are not nested, by name: the id and the type."""


def iceberg_columns(columns: Iterable[SchemaColumn]) -> IcebergColumns:
    """Raises `NoIcebergType`."""
    ids, fields, names = _Ids(), [], []
    plain: dict[str, tuple[int, str]] = {}
    for column in columns:
        field_id = ids.of(column.name)
        type_, below = _type(_arrow_type(column), column, column.name, ids)
        fields.append({"id": field_id, "name": column.name, "required": not column.nullable, "type": type_})
        names.append(_mapped(field_id, column.name, below))
        if isinstance(type_, str):
            plain[column.name] = (field_id, type_)
    return IcebergColumns(fields, names, max(ids.taken, default=0), plain)


class _Ids:
    def __init__(self) -> None:
        self.taken: set[int] = set()

    def of(self, path: str) -> int:
        number = zlib.crc32(path.encode()) % _IDS + 1
        while number in self.taken:
            number += 1
        self.taken.add(number)
        return number


def _mapped(field_id: int, name: str, below: list[dict[str, Any]]) -> dict[str, Any]:
    mapped: dict[str, Any] = {"field-id": field_id, "names": [name]}
    return {**mapped, "fields": below} if below else mapped


def _arrow_type(column: SchemaColumn) -> pa.DataType:
    from traceplane.columnar.arrow_types import type_of  # with pyarrow

    encoded = _DICTIONARY.fullmatch(column.type)
    type_ = type_of(encoded[1] if encoded else column.type)
    if type_ is None:
        raise NoIcebergType(column.name, column.type)
    return type_


_PLAIN = {
    "bool": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "uint8": "int",
    "uint16": "int",
    "int64": "long",
    "uint32": "long",
    "halffloat": "float",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "string_view": "string",
    "binary": "binary",
    "large_binary": "binary",
    "binary_view": "binary",
    "date32[day]": "date",
    "time64[us]": "time",
}


def _type(
    type_: pa.DataType, column: SchemaColumn, path: str, ids: _Ids
) -> tuple[str | dict[str, Any], list[dict[str, Any]]]:
    """The type, and the name mapping of what is inside it."""
    import pyarrow as pa

    if plain := _PLAIN.get(str(type_)):
        return plain, []
    if pa.types.is_decimal(type_) and type_.precision <= 38 and type_.scale >= 0:
        return f"decimal({type_.precision}, {type_.scale})", []
    if pa.types.is_timestamp(type_) and type_.unit != "ns":
        return "timestamp" if type_.tz is None else "timestamptz", []
    if pa.types.is_fixed_size_binary(type_):
        return f"fixed[{type_.byte_width}]", []
    if pa.types.is_struct(type_):
        return _struct(type_, column, path, ids)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        element, below = _inner(type_.value_type, column, f"{path}.element", ids)
        mapped = _mapped(element["id"], "element", below)
        return {
            "type": "list",
            "element-id": element["id"],
            "element": element["type"],
            "element-required": False,
        }, [mapped]
    if pa.types.is_map(type_):
        key, below_key = _inner(type_.key_type, column, f"{path}.key", ids)
        value, below_value = _inner(type_.item_type, column, f"{path}.value", ids)
        return {
            "type": "map",
            "key-id": key["id"],
            "key": key["type"],
            "value-id": value["id"],
            "value": value["type"],
            "value-required": False,
        }, [_mapped(key["id"], "key", below_key), _mapped(value["id"], "value", below_value)]
    raise NoIcebergType(column.name, column.type)


def _inner(
    type_: pa.DataType, column: SchemaColumn, path: str, ids: _Ids
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    field_id = ids.of(path)
    inner, below = _type(type_, column, path, ids)
    return {"id": field_id, "type": inner}, below


def _struct(
    type_: pa.DataType, column: SchemaColumn, path: str, ids: _Ids
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    fields, mapped = [], []
    for field in type_:
        inner, below = _inner(field.type, column, f"{path}.{field.name}", ids)
        fields.append({**inner, "name": field.name, "required": not field.nullable})
        mapped.append(_mapped(inner["id"], field.name, below))
    return {"type": "struct", "fields": fields}, mapped
