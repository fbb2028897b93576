"""Avro files, as manifests are: as much of the format as they need.

Rows are tuples in the order of the schema's fields. The same rows make the same bytes.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

_MAGIC = b"Obj\x01"
_ROWS_PER_BLOCK = 1000

Write = Callable[[bytearray, Any], None]


def container(schema: Mapping[str, Any], metadata: Mapping[str, bytes], rows: Iterable[Any]) -> bytes:
    """A file with these rows, compressed."""
    write = _writer(schema)
    described = msgspec.json.encode(schema)
    head = {"avro.schema": described, "avro.codec": b"deflate", **metadata}
    blocks: list[tuple[int, bytes]] = []
    block, count = bytearray(), 0
    for row in rows:
        write(block, row)
        count += 1
        if count == _ROWS_PER_BLOCK:
            blocks.append((count, _deflated(block)))
            block, count = bytearray(), 0
    if count:
        blocks.append((count, _deflated(block)))
    marker = hashlib.md5(b"".join(data for _, data in blocks), usedforsecurity=False).digest()
    file = bytearray(_MAGIC)
    _long(file, len(head))
    for name, value in head.items():
        _bytes(file, name.encode())
        _bytes(file, value)
    file.append(0)
    file += marker
    for rows_in_block, data in blocks:
        _long(file, rows_in_block)
        _bytes(file, data)
        file += marker
    return bytes(file)


def _deflated(block: bytearray) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(bytes(block)) + compressor.flush()


def _writer(schema: Any) -> Write:
    match schema:
        case "int" | "long":
            return _long
        case "string":
            return lambda out, value: _bytes(out, value.encode())
        case "bytes":
            return _bytes
        case "boolean":
            return lambda out, value: out.append(value)
        case ["null", inner]:
            return _optional(_writer(inner))
        case {"type": "record", "fields": fields}:
            return _record([_writer(field["type"]) for field in fields])
        case {"type": "array", "items": items}:
            return _array(_writer(items))
        case {"type": str() as plain}:  # with a logical type
            return _writer(plain)
    raise ValueError(f"no Avro schema of manifests: {schema!r}")


def _long(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _bytes(out: bytearray, value: bytes) -> None:
    _long(out, len(value))
    out += value


def _optional(write: Write) -> Write:
    def optional(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(2)
            write(out, value)

    return optional


def _record(writers: list[Write]) -> Write:
    def record(out: bytearray, values: tuple[Any, ...]) -> None:
        for write, value in zip(writers, values, strict=True):
            write(out, value)

    return record


def _array(write: Write) -> Write:
    def array(out: bytearray, items: list[Any]) -> None:
        if items:
            _long(out, len(items))
            for item in items:
                write(out, item)
        out.append(0)

    return array
