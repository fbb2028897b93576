"""The operator `file_rows`: the files of a partition become rows with the declared columns, a piece at a time."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from traceplane.columnar.arrow_types import declared_name, type_of
from traceplane.columnar.json_values import ValueUnfit, converted
from traceplane.file_sources.config import Format
from traceplane.file_sources.specs import RowsConfig
from traceplane.model.counted import counted
from traceplane.model.json_text import parsed
from traceplane.operators import config as operator_config
from traceplane.sdk import OperatorError, OperatorTask

_ROWS_AT_ONCE = 10_000
_BYTES_AT_ONCE = 4 << 20
_DELIMITERS = (";", "\t", "|", ",")
_IN_COLUMN = re.compile(r"In CSV column #(\d+): ")


def run(task: OperatorTask) -> None:
    config = operator_config.read(task.config, RowsConfig)
    (source,), (output,) = task.inputs.values(), task.outputs.values()
    schema = pa.schema([pa.field(c.name, type_of(c.type), c.nullable) for c in output.columns])
    pieces = (
        piece
        for path, local in task.files(source.name).items()
        for piece in _complete(path, _read(config, path, local, schema), schema)
    )
    if task.unique_key:  # duplicates are dropped among all rows that are written at once
        task.write(
            output.name, pa.concat_tables([schema.empty_table(), *pieces], promote_options="permissive")
        )
        return
    with task.open_writer(output.name, schema) as write:
        for piece in pieces:
            write(piece)


_COMPRESSED: Mapping[str, Callable[..., IO[bytes]]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}  # type: ignore[dict-item]
"""By the ending of a file's name."""
_DAMAGED = (pa.ArrowException, OSError, EOFError, UnicodeDecodeError, lzma.LZMAError, zlib.error)


def _opened(local: Path) -> IO[bytes]:
    opened: IO[bytes] = _COMPRESSED.get(local.suffix, open)(local, "rb")
    return opened


def _read(config: RowsConfig, path: str, local: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    if not local.stat().st_size:
        return
    try:
        match config.format:
            case Format.CSV:
                _check_header(path, local, schema, config.delimiter)
                yield from _csv(local, schema, config.delimiter)
            case Format.JSON_LINES:
                yield from _json_lines(path, local, schema)
            case Format.PARQUET:
                yield from _parquet(local, schema)
    except pa.ArrowInvalid as error:
        if (column := _IN_COLUMN.match(str(error))) is not None:
            name = _header(local, config.delimiter)[int(column[1])]
            field = schema.field(name)
            line = _line_of_misfit(local, config.delimiter, int(column[1]), field)
            message = f"{path}{line}, column {name!r}: a value does not fit into {declared_name(field.type)}"
            raise OperatorError("file.value_unfit", message) from None
        if "columns, got" in str(error):
            raise OperatorError(
                "file.unreadable", path + _row_of_other_length(local, config.delimiter)
            ) from None
        raise OperatorError("file.unreadable", f"{path}: {error}") from None
    except _DAMAGED as error:
        raise OperatorError("file.unreadable", f"{path}: {error}") from None


def _csv(local: Path, schema: pa.Schema, delimiter: str) -> Iterator[pa.Table]:
    """An empty value is null; a quoted empty one is empty text."""
    with (
        _opened(local) as stream,
        arrow_csv.open_csv(
            stream,
            read_options=arrow_csv.ReadOptions(block_size=_BYTES_AT_ONCE),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types={field.name: field.type for field in schema},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        ) as reader,
    ):
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _check_header(path: str, local: Path, schema: pa.Schema, delimiter: str) -> None:
    header = _header(local, delimiter)
    if not header or set(header) & set(schema.names):
        return
    line = delimiter.join(header)
    other = next((mark for mark in _DELIMITERS if mark != delimiter and mark in line), None)
    message = f"{path} has none of the columns {', '.join(schema.names[:10])}; its header is {line[:200]!r}"
    if other is not None:
        message += f"; if {other!r} separates its values, write config: {{ delimiter: {json.dumps(other)} }}"
    raise OperatorError("file.unreadable", message)


def _header(local: Path, delimiter: str) -> list[str]:
    return next((row for _, row in _rows(local, delimiter)), [])


def _rows(local: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file, the header first, with the lines that they end in."""
    with io.TextIOWrapper(_opened(local), "utf-8-sig", errors="surrogateescape", newline="") as text:
        reader = csv.reader(text, delimiter=delimiter)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error:  # a value that is too long for this reader
            return


def _row_of_other_length(local: Path, delimiter: str) -> str:
    """Which row it is, and not its values: files may hold what logs must not."""
    expected = len(_header(local, delimiter))
    for line, row in _rows(local, delimiter):
        if len(row) != expected:
            return f", line {line}: it has {counted(len(row), 'value')}, but the header has {expected}"
    return ": a row has more or fewer values than the header"


def _line_of_misfit(local: Path, delimiter: str, column: int, field: pa.Field) -> str:
    """Arrow does not say in which line a value does not fit."""
    rows = itertools.islice(_rows(local, delimiter), 1, None)
    values = ((line, row[column]) for line, row in rows if len(row) > column and row[column])
    while chunk := list(itertools.islice(values, _ROWS_AT_ONCE)):
        if _fits(chunk, field):
            continue
        while len(chunk) > 1:
            half = len(chunk) // 2
            chunk = chunk[half:] if _fits(chunk[:half], field) else chunk[:half]
        return f", line {chunk[0][0]}"
    return ""


def _fits(values: Sequence[tuple[int, str]], field: pa.Field) -> bool:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([(field.name,), *((value,) for _, value in values)])
    try:
        arrow_csv.read_csv(
            io.BytesIO(text.getvalue().encode(errors="surrogateescape")),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(column_types={field.name: field.type}, null_values=[""]),
        )
    except pa.ArrowInvalid:
        return False
    return True


def _json_lines(path: str, local: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    rows: list[dict[str, Any]] = []
    with _opened(local) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                rows.append(_row(path, number, line.decode(), schema))
            if len(rows) == _ROWS_AT_ONCE:
                yield _table(path, rows, schema)
                rows = []
    if rows:
        yield _table(path, rows, schema)


def _row(path: str, number: int, line: str, schema: pa.Schema) -> dict[str, Any]:
    try:
        value = parsed(line)
    except ValueError as error:
        raise OperatorError("file.unreadable", f"{path}, line {number}: {error}") from None
    if not isinstance(value, dict):
        raise OperatorError("file.unreadable", f"{path}, line {number}: it is no object, so it is no row")
    row = {}
    for field in schema:
        try:
            row[field.name] = converted(value.get(field.name), field.type)
        except ValueUnfit as error:
            message = f"{path}, line {number}, column {field.name!r}: {error}"
            raise OperatorError("file.value_unfit", message) from None
    return row


def _table(path: str, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    arrays = []
    for field in schema:
        try:
            arrays.append(pa.array([row[field.name] for row in rows], field.type))
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            message = f"{path}, column {field.name!r}: a value has more digits than {declared_name(field.type)} holds"
            raise OperatorError("file.value_unfit", message) from None
    return pa.table(arrays, names=schema.names)


def _parquet(local: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    file = parquet.ParquetFile(local)
    names = [name for name in file.schema_arrow.names if name in schema.names]
    for batch in file.iter_batches(_ROWS_AT_ONCE, columns=names):
        yield pa.Table.from_batches([batch])


def _complete(path: str, pieces: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """The declared columns, in their order; one that a file lacks is null."""
    for piece in pieces:
        if not set(piece.column_names) & set(schema.names):
            message = f"{path} has none of the columns {', '.join(schema.names[:10])}"
            raise OperatorError("file.unreadable", message)
        if len(set(piece.column_names)) < piece.num_columns:
            raise OperatorError("file.unreadable", f"{path} has two columns of one name")
        columns = {
            field.name: piece.column(field.name)
            if field.name in piece.column_names
            else pa.nulls(piece.num_rows, field.type)
            for field in schema
        }
        for field in schema:
            if not field.nullable and columns[field.name].null_count:
                message = f"{path}, column {field.name!r}: a value is missing, and the column is not nullable"
                raise OperatorError("file.value_unfit", message)
        fields = [pa.field(field.name, columns[field.name].type, field.nullable) for field in schema]
        yield pa.table(list(columns.values()), schema=pa.schema(fields))
