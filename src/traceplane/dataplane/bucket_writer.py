"""Runs in the Python processes of Spark's executors: writes a partition as Parquet files and stores them in S3.

Sent there by value, so it imports only the standard library and pyarrow. A request is signed as AWS describes it
(Signature Version 4).
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import io
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.parquet as parquet

FILE_BYTES = 256 << 20
"""A file that has grown to this is stored, and another one begun: it is in memory until then."""
_GROUP_BYTES = 64 << 20
_SECONDS = 120
_RENEWAL_SECONDS = 10
_TRIES = 6
_BUSY = frozenset({408, 429, 500, 502, 503, 504})
_STORED_BEFORE = 412
"""The name is new, so an earlier try of this request has stored the file, and only its answer was lost."""


@dataclass(frozen=True)
class Keys:
    access_key: str
    secret_key: str
    session_token: str


@dataclass(frozen=True)
class Target:
    bucket: str
    prefix: str
    keys: Keys
    renewal: tuple[str, str] | None
    """The address and the token with which to get others, which are then needed for each file."""
    region: str
    endpoint_url: str | None
    schema: bytes


def stored_files(target: Target, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The name, size and footer of each file; a partition without rows has none."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    schema = pa.ipc.read_schema(pa.py_buffer(target.schema))
    attempt = uuid.uuid4().hex
    writer: _File | None = None
    number = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if writer is None:
            writer = _File(schema)
        writer.add(batch)
        if writer.size >= FILE_BYTES:
            yield _stored(target, f"part-{partition:05d}-{number:03d}-{attempt}.parquet", writer)
            writer, number = None, number + 1
    if writer is not None:
        yield _stored(target, f"part-{partition:05d}-{number:03d}-{attempt}.parquet", writer)


class _File:
    def __init__(self, schema: pa.Schema) -> None:
        self.sink = io.BytesIO()
        self._schema = schema
        self._footer: list[parquet.FileMetaData] = []
        self._writer = parquet.ParquetWriter(
            self.sink, schema, compression="zstd", metadata_collector=self._footer
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    @property
    def size(self) -> int:
        return self.sink.tell()

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._waiting:
            rows = pa.Table.from_batches(self._waiting).cast(self._schema)
            self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> bytes:
        """The footer, as a file of its own."""
        self._write_group()
        self._writer.close()
        footer = io.BytesIO()
        self._footer[0].write_metadata_file(footer)
        return footer.getvalue()


def _stored(target: Target, name: str, file: _File) -> pa.RecordBatch:
    footer = file.close()
    size = file.size
    put(target, name, file.sink.getbuffer())
    fields = [("name", pa.string()), ("bytes", pa.int64()), ("footer", pa.binary())]
    return pa.RecordBatch.from_pylist([{"name": name, "bytes": size, "footer": footer}], pa.schema(fields))


def put(target: Target, name: str, body: memoryview) -> None:
    """Stores a file under a name that no other has."""
    key = target.prefix + name
    digest = hashlib.sha256(body).hexdigest()
    problem = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(min(10.0, 0.5 * 2**attempt))
        try:
            status, text = _send(target, key, body, digest)
        except (OSError, http.client.HTTPException) as error:
            problem = f"{type(error).__name__}: {error}"
            continue
        if status in (200, 204) or (status == _STORED_BEFORE and attempt):
            return
        problem = f"HTTP {status}: {text}"
        if status not in _BUSY:
            break
    raise RuntimeError(f"TRACEPLANE_NOT_STORED {problem[:500]}")


def _send(target: Target, key: str, body: memoryview, digest: str) -> tuple[int, str]:
    host, path, secure = _address(target, key)
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = connect(host, timeout=_SECONDS)
    try:
        keys = target.keys if target.renewal is None else _renewed(*target.renewal)
        headers = signed_headers(keys, target.region, host, path, digest, datetime.now(UTC))
        connection.request("PUT", path, body=body, headers=headers | {"Content-Length": str(len(body))})
        answer = connection.getresponse()
        return answer.status, answer.read(2000).decode("utf-8", "replace")
    finally:
        connection.close()


def _renewed(url: str, token: str) -> Keys:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_RENEWAL_SECONDS)
    try:
        connection.request("GET", parts.path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise OSError(f"the worker gives no credentials: HTTP {answer.status}")
        return Keys(*text.split("\n")[:3])
    finally:
        connection.close()


def _address(target: Target, key: str) -> tuple[str, str, bool]:
    path = "/" + quote(key, safe="/-_.~")
    if target.endpoint_url is None:
        return f"{target.bucket}.s3.{target.region}.amazonaws.com", path, True
    url = urlsplit(target.endpoint_url)
    return url.netloc, f"/{target.bucket}{path}", url.scheme == "https"


def signed_headers(
    keys: Keys, region: str, host: str, path: str, digest: str, now: datetime
) -> dict[str, str]:
    """Those of a PUT that overwrites nothing."""
    time_, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {
        "host": host,
        "if-none-match": "*",
        "x-amz-content-sha256": digest,
        "x-amz-date": time_,
        "x-amz-security-token": keys.session_token,
    }
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"PUT\n{path}\n\n{lines}\n{names}\n{digest}"
    scope = f"{day}/{region}/s3/aws4_request"
    hashed = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{time_}\n{scope}\n{hashed}"
    key = f"AWS4{keys.secret_key}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"{keys.access_key}/{scope}"
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return headers
