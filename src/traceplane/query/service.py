"""A query from its text to the pieces of its result."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceplane import telemetry
from traceplane.adapters.object_cache import ObjectCache
from traceplane.errors import TraceplaneError
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.postgres.database import Database
from traceplane.postgres.pinned import PinnedDataset
from traceplane.query.catalog import Catalog
from traceplane.query.datasets import NOW, AsOf, QueryCaller, may_read_pinned, pin_text
from traceplane.query.engine_pool import EnginePool
from traceplane.query.preparation import PlannedFiles, Preparation, PreparedQuery
from traceplane.query.wire import FileGroup, Format, QueryLimits
from traceplane.sql import gate

HELD_BACK_BYTES = 1 << 20
"""A result is sent once it has this size or is complete: an error before that gets a proper error response."""

CONTENT_TYPES: dict[Format, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True, slots=True)
class QueryResult:
    content_type: str
    generations: dict[str, str]
    """The generation of each dataset that the query read and the caller may read: virtual ones may read others."""
    pieces: AsyncGenerator[bytes]


class Queries:
    """Every call is given the database as its caller may see it."""

    def __init__(
        self,
        engines: EnginePool,
        *,
        object_root: Path | None,
        limits: QueryLimits,
        open_cache: Callable[[], Awaitable[ObjectCache]] | None = None,
    ) -> None:
        self._engines = engines
        self._preparation = Preparation(object_root=object_root, limits=limits, open_cache=open_cache)

    async def close(self) -> None:
        await self._engines.close()
        await self._preparation.close()

    async def run(
        self,
        database: Database,
        caller: QueryCaller,
        sql: str,
        *,
        format_: Format,
        as_of: AsOf = NOW,
        max_rows: int | None = None,
        most_bytes: int | None = None,
    ) -> QueryResult:
        """The result, once its first part is available. `most_bytes`: raises `OverLimit` if the files that it reads
        have more."""
        started = time.perf_counter()
        try:
            prepared = await self._preparation.prepare(
                database, caller, sql, format_, as_of, max_rows, most_bytes
            )
            planned = time.perf_counter()
            try:
                first, rest = await _hold_back(self._engines.run(prepared.query, caller.share, prepared.read))
            except BaseException:
                await prepared.release()
                raise
            if rest is None:
                await prepared.release()
        except TraceplaneError as error:
            self.note_failure(caller, sql, error)
            raise
        telemetry.count("queries_total", outcome="answered")
        telemetry.observe("query_seconds", planned - started, part="metadata")
        telemetry.observe("query_seconds", time.perf_counter() - planned, part="engine")
        telemetry.emit(
            "query.answered",
            principal=caller.name,
            query_hash=query_hash(sql),
            files=sum(c.files for c in prepared.chosen),
            of_files=sum(c.of_files for c in prepared.chosen),
            metadata_ms=round((planned - started) * 1000),
        )
        generations = {
            pin_text(pin): str(d.generation_id)
            for pin, d in prepared.datasets.items()
            if may_read_pinned(caller, d)
        }
        return QueryResult(CONTENT_TYPES[format_], generations, _joined(first, rest, prepared.release))

    async def prepare(
        self,
        database: Database,
        caller: QueryCaller,
        sql: str,
        *,
        format_: Format = "json",
        as_of: AsOf = NOW,
        max_rows: int | None = None,
    ) -> PreparedQuery:
        return await self._preparation.prepare(database, caller, sql, format_, as_of, max_rows)

    async def plan(
        self, database: Database, caller: QueryCaller, sql: str, as_of: AsOf = NOW
    ) -> PlannedFiles:
        """What the query would read."""
        try:
            return await self._preparation.plan(database, caller, sql, as_of)
        except TraceplaneError as error:
            self.note_failure(caller, sql, error)
            raise

    async def columns_of(
        self, database: Database, caller: QueryCaller, dataset_id: str
    ) -> list[SchemaColumn]:
        """Of a virtual dataset: the columns that the caller sees, as determined by the engine."""
        quoted = dataset_id.replace('"', '""')
        prepared = await self.prepare(database, caller, f'select * from "{quoted}" limit 0', format_="arrow")
        schema = await self._schema_of(prepared, caller)
        return [SchemaColumn(field.name, str(field.type), field.nullable) for field in schema]

    async def result_names(self, database: Database, caller: QueryCaller, sql: str, as_of: AsOf) -> list[str]:
        """How the columns of a result would be called, each by another name. Empty if only the files have the types of
        what it reads."""
        prepared = await self._preparation.without_rows(database, caller, sql, as_of)
        if prepared is None:
            return []
        names: list[str] = (await self._schema_of(prepared, caller)).names
        return names

    async def _schema_of(self, prepared: PreparedQuery, caller: QueryCaller) -> Any:
        import pyarrow.ipc as ipc  # slow to import, so a gateway starts without it

        try:
            pieces = self._engines.run(prepared.query, caller.share, prepared.read)
            return ipc.open_stream(b"".join([piece async for piece in pieces])).schema
        finally:
            await prepared.release()

    @property
    def catalog(self) -> Catalog:
        return self._preparation.catalog

    async def left_out(
        self, database: Database, caller: QueryCaller, dataset: PinnedDataset, groups: Sequence[FileGroup]
    ) -> dict[str, list[int]]:
        """Which rows of files queries do not read, because newer commits have replaced them: their numbers, by path."""
        import pyarrow.ipc as ipc  # slow to import, so a gateway starts without it

        prepared = await self._preparation.left_out(database, dataset, groups)
        try:
            pieces = self._engines.run(prepared.query, caller.share, prepared.read)
            table = ipc.open_stream(b"".join([piece async for piece in pieces])).read_all()
        finally:
            await prepared.release()
        places = prepared.query.relations[0].groups
        paths = {
            place: path
            for there, group in zip(places, groups, strict=True)
            for place, path in zip(there.paths, group.paths, strict=True)
        }
        return {
            paths[name]: numbers
            for name, numbers in zip(*(column.to_pylist() for column in table.columns), strict=True)
        }

    def note_failure(self, caller: QueryCaller, sql: str, error: TraceplaneError) -> None:
        """Counts and logs the error."""
        if not gate.denied(error):
            telemetry.count("queries_total", outcome="failed")
            telemetry.emit("query.failed", principal=caller.name, query_hash=query_hash(sql), code=error.code)
            return
        telemetry.count("queries_total", outcome="denied")
        telemetry.emit(
            "query.denied",
            "warning",
            org=caller.org,
            principal=caller.name,
            role=caller.role,
            reason=error.code,
            query_hash=query_hash(sql),
        )


async def _hold_back(pieces: AsyncGenerator[bytes]) -> tuple[list[bytes], AsyncGenerator[bytes] | None]:
    first: list[bytes] = []
    try:
        async for piece in pieces:
            first.append(piece)
            if sum(map(len, first)) >= HELD_BACK_BYTES:
                return first, pieces
    except BaseException:
        await pieces.aclose()
        raise
    return first, None


async def _joined(
    first: list[bytes], rest: AsyncGenerator[bytes] | None, release: Callable[[], Awaitable[None]]
) -> AsyncGenerator[bytes]:
    try:
        for piece in first:
            yield piece
        if rest is not None:
            async for piece in rest:
                yield piece
    finally:
        if rest is not None:
            await rest.aclose()
        await release()


def query_hash(sql: str) -> str:
    """Names a query where its text must not be: in the log, and in the audit log."""
    return hashlib.sha256(sql.encode("utf-8", "replace")).hexdigest()
