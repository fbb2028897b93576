"""Queries from Python: results as Arrow tables.

from traceplane.client import Client

table = Client("http://127.0.0.1:7461", token).query("select count(*) from chain.blocks")
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.ipc as ipc

from traceplane.control_api import QueryRequest
from traceplane.errors import PlatformError
from traceplane.task_api import as_error

Format = Literal["json", "csv", "arrow", "parquet"]
_PIECE_BYTES = 1 << 20


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
        make = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = make(self._url.netloc, timeout=self._timeout)
        try:
            connection.request(
                "POST",
                self._url.path.rstrip("/") + "/v1/query",
                msgspec.json.encode(request),
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
