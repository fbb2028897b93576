"""The gateway from Python: queries as Arrow tables, and executions for Celery's workers.

from traceplane.client import Client

table = Client("http://127.0.0.1:7461", token).query("select count(*) from chain.blocks")
"""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.ipc as ipc

from traceplane.control_api import ExecutionChange, ExecutionView, QueryRequest
from traceplane.errors import Conflict, PlatformError
from traceplane.task_api import as_error

Format = Literal["json", "csv", "arrow", "parquet"]
_PIECE_BYTES = 1 << 20
_REPORT_PATIENCE_SECONDS = 600.0


class Client:
    """A gateway, by its address and a user token. Calls block, so that they work in scripts and notebooks alike."""

    def __init__(self, url: str, token: str, *, timeout_seconds: float = 600.0) -> None:
        self._url = urlsplit(url)
        self._token = token
        self._timeout = timeout_seconds

    def query(
        self,
        sql: str,
        *,
        as_of_version: Mapping[str, int] | None = None,
        as_of_time: datetime | None = None,
        max_rows: int | None = None,
    ) -> pa.Table:
        """The whole result. An incomplete one is an error, never a shorter table."""
        with _Pieces(
            self.pieces(
                sql, format="arrow", as_of_version=as_of_version, as_of_time=as_of_time, max_rows=max_rows
            )
        ) as file:
            return ipc.open_stream(file).read_all()

    def pieces(
        self,
        sql: str,
        *,
        format: Format = "arrow",
        as_of_version: Mapping[str, int] | None = None,
        as_of_time: datetime | None = None,
        max_rows: int | None = None,
    ) -> Iterator[bytes]:
        """The result as it comes, in any format."""
        request = QueryRequest(sql, format, dict(as_of_version or {}), as_of_time, max_rows)
        return self._call("POST", "/v1/query", request)

    @contextlib.contextmanager
    def execution(self, execution_id: str) -> Iterator[ExecutionView | None]:
        """For a Celery worker that was told of an execution: the execution, once it is this worker's, or None if
        another has it. It is completed when the block ends, or has failed when the block raises."""
        path = f"/api/v1/executions/{execution_id}"
        try:
            claimed = self._move(path, ExecutionChange("RUNNING"))
        except Conflict:
            yield None
            return
        try:
            yield claimed
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"[:20_000]
            self._patiently_move(path, ExecutionChange("FAILED", text))
            raise
        self._patiently_move(path, ExecutionChange("COMPLETED"))

    def _move(self, path: str, change: ExecutionChange) -> ExecutionView:
        return msgspec.json.decode(b"".join(self._call("PATCH", path, change)), type=ExecutionView)

    def _patiently_move(self, path: str, change: ExecutionChange) -> None:
        """Repeats the report while the gateway is away: it changes nothing the second time."""
        deadline, pause = time.monotonic() + _REPORT_PATIENCE_SECONDS, 0.1
        while True:
            try:
                self._move(path, change)
                return
            except Conflict:
                return  # it was given up for lost meanwhile
            except PlatformError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(pause)
                pause = min(pause * 2, 5.0)

    def _call(self, method: str, path: str, body: msgspec.Struct) -> Iterator[bytes]:
        make = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = make(self._url.netloc, timeout=self._timeout)
        try:
            connection.request(
                method,
                self._url.path.rstrip("/") + path,
                msgspec.json.encode(body),
                {"authorization": f"Bearer {self._token}", "content-type": "application/json"},
            )
            answer = connection.getresponse()
            if answer.status >= 400:
                raise as_error(answer.status, answer.read())
            while piece := answer.read(_PIECE_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise PlatformError(
                "service.unreachable",
                "the service did not answer, or not to the end",
                value=f"{self._url.geturl()}: {type(error).__name__} {error}",
                next_step="check that it runs; the call may be repeated",
            ) from error
        finally:
            connection.close()


class _Pieces:
    """What pyarrow reads from: a file of pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest, self.closed = pieces, b"", False

    def __enter__(self) -> _Pieces:
        return self

    def __exit__(self, *_: Any) -> None:
        self._pieces.close()  # type: ignore[attr-defined]
        self.closed = True

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found = [self._rest]
        have = len(self._rest)
        while size < 0 or have < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            found.append(piece)
            have += len(piece)
        data = b"".join(found)
        if size < 0:
            self._rest = b""
            return data
        self._rest = data[size:]
        return data[:size]
