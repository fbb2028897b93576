"""The result of a query in the requested format."""

from __future__ import annotations

import csv
import io
from datetime import datetime
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet

from traceplane.linux.conversation import Pieces
from traceplane.query.wire import Format


class Encoder(Protocol):
    def batch(self, batch: pa.RecordBatch) -> None: ...
    def end(self, rows: int) -> None: ...


class _Json:
    """`{"columns": [{"name", "type"}], "rows": [[…], …], "row_count": n}`"""

    def __init__(self, sink: Pieces, schema: pa.Schema) -> None:
        self._sink, self._first = sink, True
        self._json = msgspec.json.Encoder(decimal_format="number", enc_hook=_text)
        columns = [{"name": field.name, "type": str(field.type)} for field in schema]
        sink.write(b'{"columns":' + self._json.encode(columns) + b',"rows":[')

    def batch(self, batch: pa.RecordBatch) -> None:
        rows = zip(*(_plain(column) for column in batch.columns), strict=True)
        encoded = self._json.encode(list(rows))[1:-1]
        self._sink.write(encoded if self._first else b"," + encoded)
        self._first = False

    def end(self, rows: int) -> None:
        self._sink.write(b'],"row_count":%d}\n' % rows)


def _plain(column: pa.Array) -> list[Any]:
    """Values as JSON: non-finite ones become null, whole decimals lose their point."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_nested(column.type):
        return [_finite(value) for value in values]
    if pa.types.is_floating(column.type):
        return [_finite(value) for value in values]
    return values


def _text(value: Any) -> str:
    """What JSON has no form for. Times with nanoseconds are of a type of their own."""
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if value - value == 0 else None
        case list():
            return [_finite(item) for item in value]
        case tuple():
            return [_finite(item) for item in value]
        case dict():
            return {str(key): _finite(item) for key, item in value.items()}
        case _:
            return value


class _Csv:
    def __init__(self, sink: Pieces, schema: pa.Schema) -> None:
        self._sink, self._writer = sink, None
        if not any(pa.types.is_nested(f.type) or pa.types.is_binary(f.type) for f in schema):
            self._schema = pa.schema(
                [f.with_type(pa.string()) if pa.types.is_timestamp(f.type) else f for f in schema]
            )
            self._writer = arrow_csv.CSVWriter(pa.PythonFile(sink, mode="w"), self._schema)
        else:
            self._json = msgspec.json.Encoder(decimal_format="number", enc_hook=_text)
            self._write([schema.names])

    def batch(self, batch: pa.RecordBatch) -> None:
        if self._writer is not None:
            columns = [_times_as_text(c) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
            self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        else:
            self._write(zip(*(map(self._cell, column.to_pylist()) for column in batch.columns), strict=True))

    def _cell(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, datetime):
            return self._json.encode(value).decode()[1:-1]
        return self._json.encode(_finite(value)).decode() if isinstance(value, list | dict) else value

    def _write(self, rows: Any) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._sink.write(text.getvalue().encode())

    def end(self, rows: int) -> None:
        if self._writer is not None:
            self._writer.close()


def _times_as_text(times: pa.Array) -> pa.Array:
    """As JSON has them: `2026-11-16T05:00:00Z`, with a fraction only if there is one. Arrow writes all digits."""
    text = times.cast(pa.timestamp(times.type.unit)).cast(pa.string())  # an instant is one of UTC
    text = pc.replace_substring(text, " ", "T", max_replacements=1)
    text = pc.replace_substring_regex(text, r"\.0+$", "")
    return text if times.type.tz is None else pc.binary_join_element_wise(text, "Z", "")


class _ByArrow:
    """A format that Arrow has a writer for."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def batch(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def end(self, rows: int) -> None:
        self._writer.close()


def _arrow(sink: Pieces, schema: pa.Schema) -> _ByArrow:
    return _ByArrow(ipc.new_stream(pa.PythonFile(sink, mode="w"), schema))


def _parquet(sink: Pieces, schema: pa.Schema) -> _ByArrow:
    return _ByArrow(parquet.ParquetWriter(pa.PythonFile(sink, mode="w"), schema))


class _Makes(Protocol):
    def __call__(self, sink: Pieces, schema: pa.Schema) -> Encoder: ...


ENCODERS: dict[Format, _Makes] = {"json": _Json, "csv": _Csv, "arrow": _arrow, "parquet": _parquet}
