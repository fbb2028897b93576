"""Arrow types from their names, as manifests carry them: the inverse of `str(type)`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (-?\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_LIST = re.compile(r"list<\w+: (.+)>")


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
    if match := _LIST.fullmatch(name):
        element = type_of(match[1].removesuffix(" not null"))
        return None if element is None else pa.list_(element)
    try:
        return pa.type_for_alias(
            {"halffloat": "float16", "float": "float32", "double": "float64"}.get(name, name)
        )
    except ValueError:
        return None
