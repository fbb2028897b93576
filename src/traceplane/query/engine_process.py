"""The process of one query, and the server that forks it.

The server (`python -m traceplane.query.engine_process`) imports what queries need once, opens an empty DuckDB and forks
a process for each query. It holds no secrets and never runs a query itself. A query's process confines itself before it
runs anything: it can read the folders of its files, write its own spill folder, and reach no network.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NoReturn

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute  # imported here, because a query may not read these files
import pyarrow.ipc as ipc

from traceplane.linux import conversation, fork_server
from traceplane.linux.confine import Allowed, Barriers, confine, no_network
from traceplane.linux.conversation import Pieces
from traceplane.linux.fork_server import Readiness
from traceplane.query.encoders import ENCODERS
from traceplane.query.failures import QueryRefused, explain
from traceplane.query.locked_duckdb import check_tree, open_empty, open_locked
from traceplane.query.store_files import Questions, SharedSocket, file_system
from traceplane.query.wire import Answer, EngineRequest, QueryFinished

_BATCH_ROWS = 20_000
_SLACK_BYTES = 1 << 30
"""What a process may use besides DuckDB's own memory: batches of the result, read buffers, Python itself."""
_GRACE_SECONDS = 10.0
"""The gateway ends a query on timeout; this is for a process whose gateway cannot."""


def answer_query(
    request: EngineRequest, owner: socket.socket, empty: duckdb.DuckDBPyConnection | None = None
) -> QueryFinished:
    query = request.query
    target = SharedSocket(owner)
    files = file_system(query.in_parts, Questions(owner, target)) if query.in_parts else None
    connection = open_locked(request, empty, files)
    check_tree(connection, query.sql, {relation.name for relation in query.relations})
    reader = connection.execute(query.sql).to_arrow_reader(_BATCH_ROWS)
    sink, rows = Pieces(target, query.limits.max_bytes), 0
    encoder = ENCODERS[query.format](sink, reader.schema)
    for batch in _batches(reader):
        rows += batch.num_rows
        if rows > query.limits.max_rows:
            raise QueryRefused("query.too_large", f"the result has more than {query.limits.max_rows} rows")
        encoder.batch(batch)
    encoder.end(rows)
    sink.finish()
    return QueryFinished(rows, sink.written)


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        if batch.num_rows:
            yield batch


def allowed(request: EngineRequest) -> Allowed:
    limits = request.query.limits
    return Allowed(
        limits={
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_DATA: limits.memory_mb * (1 << 20) + _SLACK_BYTES,
            resource.RLIMIT_FSIZE: limits.spill_mb << 20,
        },
        readable=request.query.roots,
        writable=[request.spill],
    )


def _run(owner: socket.socket, empty: duckdb.DuckDBPyConnection, barriers: Barriers) -> NoReturn:
    code = 0
    try:
        received = conversation.receive_request(owner)
        if received is None:
            os._exit(1)  # the caller has disconnected
        request = msgspec.json.decode(received[0], type=EngineRequest)
        # Whatever blocks the interpreter, the kernel ends the process.
        signal.setitimer(signal.ITIMER_REAL, request.query.limits.seconds + _GRACE_SECONDS)
        confine(allowed(request), barriers)
        _end(owner, answer_query(request, owner, empty))
    except (BrokenPipeError, ConnectionResetError):
        code = 1  # the caller has disconnected
    except BaseException as error:
        with contextlib.suppress(OSError):
            _end(owner, explain(error))
    os._exit(code)  # nothing needs cleaning up


def _end(owner: socket.socket, answer: Answer) -> None:
    conversation.send_frame(owner, conversation.END, msgspec.json.encode(answer))


def _prepare(setup: bytes, descriptors: list[int]) -> Readiness:
    barriers = no_network()
    _warm_up()
    empty = open_empty()
    return Readiness(msgspec.json.encode(barriers.strength), lambda owner, work: _run(owner, empty, barriers))


def _warm_up() -> None:
    """Loads what every query would otherwise load from files that it may not read."""
    os.environ.clear()
    os.environ["TZ"] = "UTC"
    with contextlib.suppress(ImportError):  # a store in a folder needs it not
        import fsspec  # noqa: F401
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
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for format_ in ("json", "csv"):
            ENCODERS[format_](Pieces(ours, 1 << 20), table.schema).batch(table.to_batches()[0])
    with ipc.new_stream(buffer, table.schema) as stream:
        stream.write_table(table)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


if __name__ == "__main__":
    fork_server.main(_prepare)
