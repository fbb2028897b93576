"""DuckDB's names of Arrow types, from their spelling in manifests (`str(type)`)."""

from __future__ import annotations

import re

_PLAIN = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "halffloat": "FLOAT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "large_string": "VARCHAR",
    "string_view": "VARCHAR",
    "binary": "BLOB",
    "large_binary": "BLOB",
    "binary_view": "BLOB",
    "date32[day]": "DATE",
    "time32[s]": "TIME",
    "time32[ms]": "TIME",
    "time64[us]": "TIME",
    "time64[ns]": "TIME",
}
_DECIMAL = re.compile(r"decimal(?:32|64|128|256)\((\d+), (\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(, tz=.+)?\]")
_LIST = re.compile(r"(?:large_)?list<\w+: (.+)>")
_BYTES = re.compile(r"fixed_size_binary\[\d+\]")


def type_of(name: str) -> str | None:
    """None for a type that DuckDB takes from the file itself."""
    if plain := _PLAIN.get(name):
        return plain
    if match := _DECIMAL.fullmatch(name):
        return f"DECIMAL({match[1]}, {match[2]})" if int(match[1]) <= 38 else None
    if match := _TIMESTAMP.fullmatch(name):
        if match[2]:
            return "TIMESTAMP WITH TIME ZONE"
        return "TIMESTAMP_NS" if match[1] == "ns" else "TIMESTAMP"
    if match := _LIST.fullmatch(name):
        element = type_of(match[1].removesuffix(" not null"))
        return None if element is None else f"{element}[]"
    return "BLOB" if _BYTES.fullmatch(name) else None
