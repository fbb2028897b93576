"""One query in a process of its own: what the server forks, and the server that forks it.

The server (`python -m traceplane.query.engine`) is started with an empty environment and one descriptor, imports what
queries need once, and forks a process for each query. It holds no secret and never runs a query itself. A query's
process confines itself before it reads what to run: only the files' folders can be read, only its own spill folder
written, and there is no network. It answers with frames: data, and at the end either what it did or why not.

    request   {sql, relations, format, limits}
    D bytes   a piece of the result
    F json    {rows, bytes}: the result is complete
    E json    {code, message}: it is not, and why
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import io
import os
import re
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal, NoReturn, Protocol

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute  # what a query would import for itself lies outside of what it may read
import pyarrow.csv as arrow_csv
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet

from traceplane.linux import forking, seccomp
from traceplane.sql.functions import OPERATORS, SCALARS_AND_AGGREGATES, TABLE_FUNCTIONS

Format = Literal["json", "csv", "arrow", "parquet"]
Ranges = tuple[tuple[int, int], ...]

_HEAD = struct.Struct(">cI")
_FRAME_BYTES = 256 << 10
_BATCH_ROWS = 20_000
_SLACK_BYTES = 1 << 30
"""What a process may use besides DuckDB's own memory: the result's batches, buffers of the reader, Python itself."""


class FileGroup(msgspec.Struct, frozen=True):
    paths: list[str]
    kept: list[tuple[int, int]] = []
    """Ranges of positions to read of them, when that is not all they have."""


class EngineColumn(msgspec.Struct, frozen=True):
    name: str
    type: str | None
    """As DuckDB spells it; None where it can only be found in the files."""


class EngineRelation(msgspec.Struct, frozen=True):
    name: str
    columns: list[EngineColumn]
    """What the caller may see."""
    groups: list[FileGroup]
    position: EngineColumn | None = None
    sql: str | None = None
    """Of a virtual dataset: what it is, over relations that stand before it."""


class EngineRequest(msgspec.Struct, frozen=True):
    sql: str
    relations: list[EngineRelation]
    format: Format
    roots: list[str]
    """Folders that the files lie in."""
    spill: str
    """An empty folder that belongs to this query."""
    max_rows: int
    max_bytes: int
    memory_mb: int
    spill_mb: int
    threads: int
    seconds: float


class Refused(Exception):
    """Why a query has no result, in words for its caller."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


# --- the locked-down DuckDB -------------------------------------------------------------------------


def open_empty() -> duckdb.DuckDBPyConnection:
    """A DuckDB without threads of its own, so that a fork takes it along whole: opening one takes longer than many a
    query. It holds nothing."""
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
            "python_scan_all_frames": False,
            "enable_external_file_cache": False,
            "preserve_insertion_order": True,
        },
    )
    connection.execute("set TimeZone = 'UTC'")
    connection.execute("select json_serialize_sql('select 1')").fetchall()
    return connection


def open_locked(
    request: EngineRequest, connection: duckdb.DuckDBPyConnection | None = None
) -> duckdb.DuckDBPyConnection:
    """A DuckDB that holds the relations, can read their files and nothing else, and cannot be changed any more."""
    connection = connection or open_empty()
    connection.execute(f"set memory_limit = '{request.memory_mb}MB'")
    connection.execute(f"set temp_directory = {_text(request.spill)}")
    connection.execute(f"set max_temp_directory_size = '{request.spill_mb}MB'")
    connection.execute(f"set threads = {request.threads}")
    paths = sorted(
        {path for relation in request.relations for group in relation.groups for path in group.paths}
    )
    connection.execute(f"set allowed_paths = {_list(paths)}")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    known: set[str] = set()
    for relation in request.relations:
        if relation.sql is not None:
            check_tree(connection, relation.sql, known)
        connection.execute(f"create view {_quoted(relation.name)} as {relation.sql or _rows_of(relation)}")
        known.add(relation.name)
    return connection


def _rows_of(relation: EngineRelation) -> str:
    names = ", ".join(_quoted(column.name) for column in relation.columns)
    if not relation.groups:
        empty = ", ".join(f"null::{c.type or 'varchar'} as {_quoted(c.name)}" for c in relation.columns)
        return f"select {empty} where false"
    return " union all ".join(
        f"select {names} from read_parquet({_list(group.paths)}, hive_partitioning = false, {_schema(relation)})"
        f"{_kept(relation, group)}"
        for group in relation.groups
    )


def _schema(relation: EngineRelation) -> str:
    """The generation's schema, so that no file has to be opened for it, and a column that a file lacks is null."""
    columns = [*relation.columns]
    if relation.position is not None and relation.position not in columns:
        columns.append(relation.position)
    if any(column.type is None for column in columns):
        return "union_by_name = true"
    fields = (
        f"{_text(c.name)}: {{name: {_text(c.name)}, type: {_text(str(c.type))}, default_value: null}}"
        for c in columns
    )
    return f"schema = map {{{', '.join(fields)}}}"


def _kept(relation: EngineRelation, group: FileGroup) -> str:
    if not group.kept or relation.position is None:
        return ""
    column = _quoted(relation.position.name)
    return " where " + " or ".join(f"{column} between {a} and {b}" for a, b in group.kept)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _list(values: list[str]) -> str:
    return "[" + ", ".join(map(_text, values)) + "]"


# --- the second line: DuckDB's own tree -------------------------------------------------------------

_REFUSED_NODES = {"SHOW_REF", "PIVOT", "COLUMN_DATA", "DELIM_GET", "BOUND_TABLE_REF", "VALUE_PARAMETER"}
_CTE = re.compile(r"tp_c[0-9]+")


def check_tree(connection: duckdb.DuckDBPyConnection, sql: str, relations: set[str]) -> None:
    """Refuses whatever DuckDB reads in the query that is not a listed relation or function."""
    row = connection.execute("select json_serialize_sql(?::varchar)", [sql]).fetchone()
    assert row is not None
    tree = msgspec.json.decode(row[0])
    if tree.get("error"):
        if tree.get("error_type") == "not implemented":
            raise Refused("query.not_a_select", "only SELECT is allowed")
        raise Refused("query.malformed", f"the query cannot be parsed: {tree.get('error_message')}")
    if len(tree["statements"]) != 1:
        raise Refused("query.several_statements", "a query is exactly one statement")
    waiting: list[tuple[Any, frozenset[str]]] = [(tree["statements"][0], SCALARS_AND_AGGREGATES | OPERATORS)]
    while waiting:
        node, functions = waiting.pop()
        if isinstance(node, list):
            waiting += [(item, SCALARS_AND_AGGREGATES | OPERATORS) for item in node]
        elif isinstance(node, dict):
            _check_node(node, functions, relations)
            table_function = node.get("type") == "TABLE_FUNCTION"
            for key, item in node.items():
                listed = TABLE_FUNCTIONS if table_function and key == "function" else None
                waiting.append((item, listed or SCALARS_AND_AGGREGATES | OPERATORS))


def _check_node(node: dict[str, Any], functions: frozenset[str], relations: set[str]) -> None:
    if str(node.get("type")) in _REFUSED_NODES:
        raise Refused("query.syntax_denied", "the query uses syntax that is not allowed")
    if "function_name" in node:
        name = str(node["function_name"]).lower()
        elsewhere = node.get("catalog") not in (None, "", "system") or node.get("schema") not in (
            None,
            "",
            "main",
        )
        if name not in functions or elsewhere:
            raise Refused("query.function_denied", "the query calls a function that is not allowed")
    if node.get("type") == "BASE_TABLE":
        name, elsewhere = (
            str(node.get("table_name")),
            bool(node.get("schema_name") or node.get("catalog_name")),
        )
        if elsewhere or not (name in relations or _CTE.fullmatch(name)):
            raise Refused("query.unknown_relation", "the query reads a relation that is not granted")


# --- results ----------------------------------------------------------------------------------------


class Sink(io.RawIOBase):
    """Where encoders write: pieces become frames, and too many of them an error."""

    def __init__(self, answer: socket.socket, max_bytes: int) -> None:
        self._answer, self._left, self._buffer = answer, max_bytes, bytearray()
        self.sent = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        piece = memoryview(data).cast("B")
        if self.sent + len(self._buffer) + len(piece) > self._left:
            raise Refused("query.too_large", f"the result is larger than {self._left} bytes")
        self._buffer += piece
        if len(self._buffer) >= _FRAME_BYTES:
            self.push()
        return len(piece)

    def push(self) -> None:
        if self._buffer:
            send_frame(self._answer, b"D", bytes(self._buffer))
            self.sent += len(self._buffer)
            self._buffer.clear()


class _Encoder(Protocol):
    def batch(self, batch: pa.RecordBatch) -> None: ...
    def end(self, rows: int) -> None: ...


class _Json:
    """`{"columns": [{"name", "type"}], "rows": [[…], …], "row_count": n}`"""

    def __init__(self, sink: Sink, schema: pa.Schema) -> None:
        self._sink, self._first = sink, True
        self._json = msgspec.json.Encoder(decimal_format="number", enc_hook=str)
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
    """Values as JSON has them: what is not finite becomes null, whole decimals lose their point."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_nested(column.type):
        return [_finite(value) for value in values]
    if pa.types.is_floating(column.type):
        return [_finite(value) for value in values]
    return values


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
    def __init__(self, sink: Sink, schema: pa.Schema) -> None:
        self._sink, self._writer = sink, None
        if not any(pa.types.is_nested(f.type) or pa.types.is_binary(f.type) for f in schema):
            self._writer = arrow_csv.CSVWriter(pa.PythonFile(sink, mode="w"), schema)
        else:
            self._json = msgspec.json.Encoder(decimal_format="number", enc_hook=str)
            self._write([schema.names])

    def batch(self, batch: pa.RecordBatch) -> None:
        if self._writer is not None:
            self._writer.write_batch(batch)
        else:
            self._write(zip(*(map(self._cell, column.to_pylist()) for column in batch.columns), strict=True))

    def _cell(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        return self._json.encode(_finite(value)).decode() if isinstance(value, list | dict) else value

    def _write(self, rows: Any) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._sink.write(text.getvalue().encode())

    def end(self, rows: int) -> None:
        if self._writer is not None:
            self._writer.close()


class _Arrow:
    def __init__(self, sink: Sink, schema: pa.Schema) -> None:
        self._writer = ipc.new_stream(pa.PythonFile(sink, mode="w"), schema)

    def batch(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def end(self, rows: int) -> None:
        self._writer.close()


class _Parquet:
    def __init__(self, sink: Sink, schema: pa.Schema) -> None:
        self._writer = parquet.ParquetWriter(pa.PythonFile(sink, mode="w"), schema)

    def batch(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def end(self, rows: int) -> None:
        self._writer.close()


_ENCODERS: dict[str, Any] = {"json": _Json, "csv": _Csv, "arrow": _Arrow, "parquet": _Parquet}


def answer_query(
    request: EngineRequest, answer: socket.socket, empty: duckdb.DuckDBPyConnection | None = None
) -> dict[str, int]:
    connection = open_locked(request, empty)
    check_tree(connection, request.sql, {relation.name for relation in request.relations})
    reader = connection.execute(request.sql).to_arrow_reader(_BATCH_ROWS)
    sink, rows = Sink(answer, request.max_bytes), 0
    encoder: _Encoder = _ENCODERS[request.format](sink, reader.schema)
    for batch in _batches(reader):
        rows += batch.num_rows
        if rows > request.max_rows:
            raise Refused("query.too_large", f"the result has more than {request.max_rows} rows")
        encoder.batch(batch)
    encoder.end(rows)
    sink.push()
    return {"rows": rows, "bytes": sink.sent}


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        if batch.num_rows:
            yield batch


# --- failures ---------------------------------------------------------------------------------------

_PATH = re.compile(r"[\"']?/[^\s\"']+[\"']?")


def explain(error: BaseException) -> Refused:
    """An error in words that name no file and none of the engine's own names."""
    match error:
        case Refused():
            return error
        case duckdb.OutOfMemoryException() | MemoryError():
            return Refused("query.out_of_memory", "the query needs more memory than one query may use")
        case duckdb.PermissionException():
            return Refused("query.syntax_denied", "the query reaches for something outside of its relations")
        case duckdb.IOException() | duckdb.HTTPException():
            if "spill" in str(error) or "temp" in str(error).lower():
                return Refused(
                    "query.out_of_memory", "the query needs more memory and disk than one query may use"
                )
            return Refused("query.file_unreadable", "a file of a dataset cannot be read")
        case duckdb.InternalException() | duckdb.FatalException():
            return Refused("query.engine_failed", "the engine failed on this query")
        case duckdb.InterruptException():
            return Refused("query.timeout", "the query took too long")
        case duckdb.Error():
            return Refused("query.invalid", _told(str(error)))
        case RecursionError():
            return Refused("query.too_deep", "the query is nested too deeply")
        case pa.ArrowInvalid() | pa.ArrowNotImplementedError() | pa.ArrowTypeError():
            return Refused(
                "query.format_unsupported",
                f"the result cannot be written in this format: {_told(str(error))}",
            )
        case OSError() if isinstance(error.__context__, Refused):
            return error.__context__
        case _:
            return Refused("query.engine_failed", f"the engine failed on this query: {type(error).__name__}")


def _told(message: str) -> str:
    said = re.split(r"\n\s*\n?LINE \d+:", message)[0].strip()
    return _PATH.sub("…", said)[:500]


# --- the process of a query -------------------------------------------------------------------------


def send_frame(target: socket.socket, kind: bytes, body: bytes) -> None:
    target.sendall(_HEAD.pack(kind, len(body)))
    target.sendall(body)


def _receive_request(source: socket.socket) -> EngineRequest:
    with source.makefile("rb") as file:
        (size,) = struct.unpack(">I", file.read(4))
        return msgspec.json.decode(file.read(size), type=EngineRequest)


def _confine(request: EngineRequest, abi: int, system_calls: seccomp.Filter | None) -> None:
    memory = request.memory_mb * (1 << 20) + _SLACK_BYTES
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, request.spill_mb << 20),
    ):
        resource.setrlimit(limit, (value, value))
    signal.setitimer(
        signal.ITIMER_REAL, request.seconds
    )  # whatever holds the interpreter, the kernel ends it
    forking.confine(abi, system_calls, readable=request.roots, writable=[request.spill])


def run_query(
    answer: socket.socket, empty: duckdb.DuckDBPyConnection, abi: int, system_calls: seccomp.Filter | None
) -> NoReturn:
    code = 0
    try:
        request = _receive_request(answer)
        _confine(request, abi, system_calls)
        done = answer_query(request, answer, empty)
        send_frame(answer, b"F", msgspec.json.encode(done))
    except (BrokenPipeError, ConnectionResetError):
        code = 1  # the caller is gone
    except BaseException as error:
        refused = explain(error)
        with contextlib.suppress(OSError):
            send_frame(answer, b"E", msgspec.json.encode({"code": refused.code, "message": refused.message}))
    os._exit(code)  # nothing of this process is worth tidying up


# --- the server that forks --------------------------------------------------------------------------


def serve(control: socket.socket) -> NoReturn:
    abi, system_calls = forking.confinement()
    _warm_up()
    empty = open_empty()
    hello = msgspec.json.encode({"landlock": abi, "seccomp": system_calls is not None})
    forking.serve(control, hello, lambda answer: run_query(answer, empty, abi, system_calls))


def _warm_up() -> None:
    """What every query would otherwise load for itself, outside of what it may read."""
    os.environ.clear()
    os.environ["TZ"] = "UTC"
    ctypes.CDLL(None)
    buffer = pa.BufferOutputStream()
    then = datetime(2000, 1, 1, tzinfo=UTC)
    table = pa.table(
        {
            "a": pa.array([1]),
            "b": pa.array([Decimal(1)]),
            "c": pa.array(["x"]),
            "d": pa.array([then], pa.timestamp("us", "UTC")),
        }
    )
    for make in (_Json, _Csv):
        pair = socket.socketpair()
        make(Sink(pair[0], 1 << 20), table.schema).batch(table.to_batches()[0])
        for end in pair:
            end.close()
    with ipc.new_stream(buffer, table.schema) as stream:
        stream.write_table(table)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
