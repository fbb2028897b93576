"""A query from its text to the pieces of its result, and the catalog that people look at."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from traceplane import telemetry
from traceplane.dataplane.arrow_types import schema_of
from traceplane.errors import Conflict, InvalidInput, NotFound, TraceplaneError
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.postgres import pinned
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.pinned import PinnedDataset
from traceplane.query import catalog, gate
from traceplane.query.catalog import Catalog, Chosen
from traceplane.query.duckdb_types import type_of
from traceplane.query.engines import Engines, Request
from traceplane.query.gate import Gated
from traceplane.query.hot_rows import export

HELD_BACK_BYTES = 1 << 20
"""A result is answered from here on, or when it is complete: what goes wrong before then is a proper error."""

CONTENT_TYPES = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True, slots=True)
class Caller:
    org: str
    name: str
    role: str
    sees_pii: bool


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float
    max_rows: int
    max_bytes: int
    memory_mb: int
    spill_mb: int
    threads: int


@dataclass(frozen=True, slots=True)
class AsOf:
    """The current state; or the pointer sets of versions of DAGs; or what was current at a time."""

    versions: Mapping[str, int]
    at: datetime | None = None


NOW = AsOf({})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A query that was let through, with all that is needed to run it."""

    request: Request
    datasets: Mapping[str, PinnedDataset]
    chosen: tuple[Chosen, ...]
    scratch: tempfile.TemporaryDirectory[str] | None = None
    """Files of this query alone: the rows of hot tables."""

    def forget(self) -> None:
        if self.scratch is not None:
            self.scratch.cleanup()


@dataclass(frozen=True, slots=True)
class Result:
    content_type: str
    generations: dict[str, str]
    """What the query saw: the generation of each dataset."""
    pieces: AsyncGenerator[bytes]


class Queries:
    """`object_root`: the folder that the object store is; none for one in S3, which queries do not read yet."""

    def __init__(
        self, database: Database, engines: Engines, *, object_root: Path | None, limits: Limits
    ) -> None:
        self._database = database
        self._engines = engines
        self._object_root = object_root
        self._limits = limits
        self._catalog = Catalog()

    async def close(self) -> None:
        await self._engines.close()

    async def run(
        self, caller: Caller, sql: str, *, format_: str, as_of: AsOf = NOW, max_rows: int | None = None
    ) -> Result:
        """The result, once its first part is there."""
        started = time.perf_counter()
        try:
            prepared = await self.prepare(caller, sql, format_=format_, as_of=as_of, max_rows=max_rows)
            planned = time.perf_counter()
            pieces = self._engines.run(prepared.request, seconds=self._limits.seconds)
            try:
                held, rest = await _hold_back(pieces)
            except BaseException:
                prepared.forget()
                raise
            if rest is None:
                prepared.forget()
        except TraceplaneError as error:
            await self._note_failure(caller, sql, error)
            raise
        telemetry.count("queries_total", outcome="answered")
        telemetry.observe("query_seconds", planned - started, part="metadata")
        telemetry.observe("query_seconds", time.perf_counter() - planned, part="engine")
        telemetry.emit(
            "query.answered",
            principal=caller.name,
            query_hash=_hash(sql),
            files=sum(c.files for c in prepared.chosen),
            of_files=sum(c.of_files for c in prepared.chosen),
            metadata_ms=round((planned - started) * 1000),
        )
        generations = {name: str(d.generation_id) for name, d in prepared.datasets.items()}
        return Result(CONTENT_TYPES[format_], generations, _joined(held, rest, prepared.forget))

    async def prepare(
        self,
        caller: Caller,
        sql: str,
        *,
        format_: str = "json",
        as_of: AsOf = NOW,
        max_rows: int | None = None,
    ) -> Prepared:
        """Gate, pointers and file lists; the latter two in one snapshot, whatever is committed meanwhile."""
        if self._object_root is None:
            raise InvalidInput(
                "query.store_unsupported",
                "the object store is in S3, which queries do not read yet",
                next_step="run queries where the object store is a folder",
            )
        gated = await asyncio.to_thread(gate.admit, sql)
        async with self._database.snapshot() as tx:
            datasets = await pinned.datasets(
                tx, caller.org, gated.dataset_ids, versions=as_of.versions, at=as_of.at
            )
            _check_all_there(gated, datasets, as_of)
            lists = {
                name: await self._catalog.files(tx, dataset, gated.conditions(name), as_of.at)
                for name, dataset in datasets.items()
            }
            hot, scratch = await self._hot_rows(tx, datasets)

        def narrow() -> tuple[Chosen, ...]:
            return tuple(
                catalog.choose(lists[r.dataset_id], datasets[r.dataset_id], r.conditions)
                for r in gated.relations
            )

        chosen = await asyncio.to_thread(narrow)
        limits = self._limits
        request: Request = {
            "sql": gated.sql,
            "relations": [
                self._relation(
                    relation.name, datasets[relation.dataset_id], files, caller, hot.get(relation.dataset_id)
                )
                for relation, files in zip(gated.relations, chosen, strict=True)
            ],
            "format": format_,
            "roots": [
                *(self._readable(folder) for folder in _generation_folders(chosen)),
                *([scratch.name] if scratch is not None else []),
            ],
            "max_rows": min(limits.max_rows, max_rows or limits.max_rows),
            "max_bytes": limits.max_bytes,
            "memory_mb": limits.memory_mb,
            "spill_mb": limits.spill_mb,
            "threads": limits.threads,
        }
        return Prepared(request, datasets, chosen, scratch)

    async def _hot_rows(
        self, tx: Transaction, datasets: Mapping[str, PinnedDataset]
    ) -> tuple[dict[str, Path], tempfile.TemporaryDirectory[str] | None]:
        """Files with what is in the tables of hot datasets."""
        wanted = {
            name: dataset
            for name, dataset in datasets.items()
            if dataset.storage == "postgres" and dataset.row_generation_id is not None
        }
        if not wanted:
            return {}, None
        scratch = tempfile.TemporaryDirectory(prefix=".query-", dir=self._object_root)
        os.chmod(scratch.name, 0o755)  # engines run as somebody else
        try:
            found = {}
            for name, dataset in wanted.items():
                assert dataset.row_generation_id is not None
                schema = schema_of({"name": c.name, "type": c.type} for c in dataset.columns)
                assert schema is not None, "a hot table has no types but those that Arrow knows by name"
                found[name] = await export(tx, dataset.row_generation_id, Path(scratch.name), schema)
        except BaseException:
            scratch.cleanup()
            raise
        return found, scratch

    def _relation(
        self, name: str, dataset: PinnedDataset, files: Chosen, caller: Caller, hot: Path | None
    ) -> dict[str, Any]:
        columns = visible_columns(dataset, caller)
        if not columns:
            raise Conflict(
                "query.no_columns",
                "nothing is known of the dataset's columns yet, or none of them may be seen",
                value=dataset.dataset_id,
                next_step="wait for its first rows, or declare its columns in the DAG file",
            )
        position = next((c for c in dataset.columns if c.name == dataset.position), None)
        return {
            "name": name,
            "columns": [_engine_column(c) for c in columns],
            "groups": [
                *({"paths": [self._readable(p) for p in ps], "kept": kept} for ps, kept in files.groups),
                *([{"paths": [str(hot)], "kept": []}] if hot is not None else []),
            ],
            "position": None if position is None else _engine_column(position),
        }

    def _readable(self, path: str) -> str:
        """Where the engine reads a file of the object store: the one place that knows what kind of store it is."""
        return f"{self._object_root}/{path}"

    async def _note_failure(self, caller: Caller, sql: str, error: TraceplaneError) -> None:
        if not gate.denied(error):
            telemetry.count("queries_total", outcome="failed")
            telemetry.emit("query.failed", principal=caller.name, query_hash=_hash(sql), code=error.code)
            return
        telemetry.count("queries_total", outcome="denied")
        telemetry.emit(
            "query.denied",
            "warning",
            org=caller.org,
            principal=caller.name,
            role=caller.role,
            reason=error.code,
            query_hash=_hash(sql),
        )
        async with self._database.transaction() as tx:
            await pinned.deny(tx, caller.org, caller.name, caller.role, error.code, _hash(sql))


def visible_columns(dataset: PinnedDataset, caller: Caller) -> list[SchemaColumn]:
    return [c for c in dataset.columns if caller.sees_pii or c.name.lower() not in dataset.pii]


def _engine_column(column: SchemaColumn) -> dict[str, str | None]:
    return {"name": column.name, "type": type_of(column.type)}


def _generation_folders(chosen: Iterable[Chosen]) -> list[str]:
    """`{dataset}/{generation}` of all files."""
    paths = (path for files in chosen for group, _ in files.groups for path in group)
    return sorted({path[: path.find("/", path.find("/") + 1)] for path in paths})


def _check_all_there(gated: Gated, datasets: Mapping[str, PinnedDataset], as_of: AsOf) -> None:
    for name in gated.dataset_ids:
        dataset = datasets.get(name)
        if dataset is None:
            raise NotFound(
                "query.unknown_relation",
                "there is no such dataset, or it is not granted",
                value=name,
                next_step="see `traceplane datasets`; a name with other characters than letters goes in double quotes",
            )
        if dataset.generation_id is None:
            raise NotFound(
                "query.nothing_then",
                "the dataset has no generation in the version, or at the time, that is asked for",
                value=name,
                next_step="see `traceplane dags` for versions",
            )
        if dataset.storage != "parquet" and as_of.at is not None:
            raise InvalidInput(
                "query.hot_dataset",
                "the rows of this dataset are in a hot table, which keeps nothing of earlier times",
                value=name,
                next_step="ask for it as it is now, or as of a version",
            )
        gone = dataset.forgotten_until
        if as_of.at is not None and gone is not None and as_of.at < gone:
            raise Conflict(
                "query.history_gone",
                f"replaced rows of the dataset were collected up to {gone.isoformat()}",
                value=name,
                next_step="ask for a later time",
            )
    if unknown := set(as_of.versions) - {d.dag for d in datasets.values()}:
        raise InvalidInput(
            "query.version_of_nothing",
            "a version is given of a DAG that the query reads nothing of",
            value=min(unknown),
            next_step="leave it out",
        )


async def _hold_back(pieces: AsyncGenerator[bytes]) -> tuple[list[bytes], AsyncGenerator[bytes] | None]:
    held: list[bytes] = []
    try:
        async for piece in pieces:
            held.append(piece)
            if sum(map(len, held)) >= HELD_BACK_BYTES:
                return held, pieces
    except BaseException:
        await pieces.aclose()
        raise
    return held, None


async def _joined(
    held: list[bytes], rest: AsyncGenerator[bytes] | None, forget: Callable[[], None]
) -> AsyncGenerator[bytes]:
    try:
        for piece in held:
            yield piece
        if rest is not None:
            async for piece in rest:
                yield piece
    finally:
        if rest is not None:
            await rest.aclose()
        forget()


def _hash(sql: str) -> str:
    return hashlib.sha256(sql.encode("utf-8", "replace")).hexdigest()
