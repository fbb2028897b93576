"""A query from its text to the pieces of its result, and the catalog that people look at."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from traceplane import telemetry
from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_store import StoredFile, staging_prefix_of
from traceplane.errors import Conflict, InvalidInput, NotFound, TooLarge, TraceplaneError
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.postgres import pinned
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.pinned import PinnedDataset
from traceplane.query import catalog
from traceplane.query.catalog import Catalog, Chosen
from traceplane.query.duckdb_types import type_of
from traceplane.query.engines import Engines, Request
from traceplane.query.hot_rows import export
from traceplane.sql import gate, spark_dialect, virtual
from traceplane.sql.gate import Moment, Relation
from traceplane.sql.virtual import Expanded

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

Pin = tuple[str, Moment]
"""A dataset, and as of when the text of the query says that it is read there."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A query that was let through, with all that is needed to run it."""

    request: Request
    datasets: Mapping[Pin, PinnedDataset]
    chosen: tuple[Chosen, ...]
    held: contextlib.AsyncExitStack
    """Files of this query alone, the rows of hot tables; and its files of S3 in the cache."""

    async def forget(self) -> None:
        await self.held.aclose()


@dataclass(frozen=True, slots=True)
class JobInput:
    name: str
    dataset: PinnedDataset
    columns: tuple[str, ...]
    """Those that may be seen; none: all of them."""


@dataclass(frozen=True, slots=True)
class JobQuery:
    """A query as a job runs it: views over inputs, of which the last is the result."""

    inputs: tuple[JobInput, ...]
    views: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Result:
    content_type: str
    generations: dict[str, str]
    """What the query saw: the generation of each dataset."""
    pieces: AsyncGenerator[bytes]


class Queries:
    """`object_root`: the folder that the object store is; none for one in S3, of which `open_cache` has copies."""

    def __init__(
        self,
        database: Database,
        engines: Engines,
        *,
        object_root: Path | None,
        limits: Limits,
        open_cache: Callable[[], Awaitable[ObjectCache]] | None = None,
        cache_bytes: int = 0,
    ) -> None:
        self._open_cache, self._cache_bytes = open_cache, cache_bytes
        self._cache: ObjectCache | None = None
        self._opening = asyncio.Lock()
        self._database = database
        self._engines = engines
        self._object_root = object_root
        self._limits = limits
        self._catalog = Catalog()

    async def close(self) -> None:
        await self._engines.close()
        if self._cache is not None:
            await self._cache.close()

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
                await prepared.forget()
                raise
            if rest is None:
                await prepared.forget()
        except TraceplaneError as error:
            await self.note_failure(caller, sql, error)
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
        generations = {_pin_text(pin): str(d.generation_id) for pin, d in prepared.datasets.items()}
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
        async with contextlib.AsyncExitStack() as held:
            request, datasets, chosen = await self._prepared(held, caller, sql, format_, as_of, max_rows)
            return Prepared(request, datasets, chosen, held.pop_all())

    async def _prepared(
        self,
        held: contextlib.AsyncExitStack,
        caller: Caller,
        sql: str,
        format_: str,
        as_of: AsOf,
        max_rows: int | None,
    ) -> tuple[Request, Mapping[Pin, PinnedDataset], tuple[Chosen, ...]]:
        root = await self._root()
        gated = await asyncio.to_thread(gate.admit, sql)
        async with self._database.snapshot() as tx:
            found = Found(tx, caller.org, as_of)
            await found.read(gated.relations)
            read = await asyncio.to_thread(
                virtual.expand, gated.relations, found.sql_of, lambda r: found.hidden_of(r, caller)
            )
            asked = {
                key(r): [c for s in read.stored if key(s) == key(r) for c in s.conditions]
                for r in read.stored
            }
            lists = {
                pin: await self._catalog.files(tx, found.datasets[pin], conditions, found.at(pin))
                for pin, conditions in asked.items()
            }
            hot = await self._hot_rows(tx, held, {pin: found.datasets[pin] for pin in asked})
        datasets = found.datasets

        def narrow() -> tuple[Chosen, ...]:
            return tuple(catalog.choose(lists[key(r)], datasets[key(r)], r.conditions) for r in read.stored)

        chosen = await asyncio.to_thread(narrow)
        if self._cache is not None:
            await held.enter_async_context(self._cache.holding(await self._stored(chosen)))
        limits = self._limits
        request: Request = {
            "sql": gated.sql,
            "relations": [
                *(
                    self._relation(
                        root, relation.name, datasets[key(relation)], files, caller, hot.get(key(relation))
                    )
                    for relation, files in zip(read.stored, chosen, strict=True)
                ),
                *await asyncio.to_thread(_views, read, datasets, caller),
            ],
            "format": format_,
            "roots": [
                *(f"{root}/{folder}" for folder in _generation_folders(chosen)),
                *{str(path.parent) for path in hot.values()},
            ],
            "max_rows": min(limits.max_rows, max_rows or limits.max_rows),
            "max_bytes": limits.max_bytes,
            "memory_mb": limits.memory_mb,
            "spill_mb": limits.spill_mb,
            "threads": limits.threads,
        }
        return request, datasets, chosen

    async def _root(self) -> str:
        """Where the files of the object store are read: in the store itself, or in the cache of one in S3."""
        if self._object_root is not None:
            return str(self._object_root)
        async with self._opening:  # with the first query: a gateway starts without the store
            if self._cache is None:
                assert self._open_cache is not None, "a store in S3 has a cache"
                self._cache = await self._open_cache()
        return str(self._cache.files)

    async def _stored(self, chosen: Iterable[Chosen]) -> list[StoredFile]:
        """The files of a query with their sizes, which the cache makes sure of."""
        wanted = {path for files in chosen for group, _ in files.groups for path in group}
        by_task = {prefix.task_id for path in wanted if (prefix := staging_prefix_of(path)) is not None}
        async with self._database.glance() as tx:
            sizes = await pinned.file_sizes(tx, sorted(by_task))
        if gone := wanted - sizes.keys():
            raise Conflict("query.file_unreadable", "a file of a dataset is gone", value=min(gone))
        if (total := sum(sizes[path] for path in wanted)) > self._cache_bytes:
            raise TooLarge(
                "query.store_too_large",
                f"the query reads {total:,} bytes of S3, more than the {self._cache_bytes:,} that the cache takes",
                value=total,
                next_step="ask for fewer positions, raise object_cache_mb, or let it run on Spark with --to-dataset",
            )
        return [StoredFile(path, sizes[path]) for path in sorted(wanted)]

    async def columns_of(self, caller: Caller, dataset_id: str) -> list[SchemaColumn]:
        """Of a virtual dataset: the columns that the caller sees, as the engine finds them."""
        import pyarrow.ipc as ipc  # slow to import: a gateway starts without it

        quoted = dataset_id.replace('"', '""')
        prepared = await self.prepare(caller, f'select * from "{quoted}" limit 0', format_="arrow")
        try:
            pieces = self._engines.run(prepared.request, seconds=self._limits.seconds)
            schema = ipc.open_stream(b"".join([piece async for piece in pieces])).schema
        finally:
            await prepared.forget()
        return [SchemaColumn(field.name, str(field.type), field.nullable) for field in schema]

    async def _hot_rows(
        self, tx: Transaction, held: contextlib.AsyncExitStack, datasets: Mapping[Pin, PinnedDataset]
    ) -> dict[Pin, Path]:
        """Files with what is in the tables of hot datasets."""
        wanted = {
            pin: dataset
            for pin, dataset in datasets.items()
            if dataset.storage == "postgres" and dataset.row_generation_id is not None
        }
        if not wanted:
            return {}
        from traceplane.columnar.arrow_types import schema_of  # with pyarrow

        place = self._cache.outputs if self._cache is not None else self._object_root
        scratch = held.enter_context(tempfile.TemporaryDirectory(prefix=".query-", dir=place))
        os.chmod(scratch, 0o755)  # engines run as somebody else
        found = {}
        for pin, dataset in wanted.items():
            assert dataset.row_generation_id is not None
            schema = schema_of({"name": c.name, "type": c.type} for c in dataset.columns)
            assert schema is not None, "a hot table has no types but those that Arrow knows by name"
            found[pin] = await export(tx, dataset.row_generation_id, Path(scratch), schema)
        return found

    def _relation(
        self, root: str, name: str, dataset: PinnedDataset, files: Chosen, caller: Caller, hot: Path | None
    ) -> dict[str, Any]:
        columns = visible_columns(dataset, caller)
        if not columns:
            raise _no_columns(dataset)
        position = next((c for c in dataset.columns if c.name == dataset.position), None)
        return {
            "name": name,
            "columns": [_engine_column(c) for c in columns],
            "groups": [
                *({"paths": [f"{root}/{p}" for p in ps], "kept": kept} for ps, kept in files.groups),
                *([{"paths": [str(hot)], "kept": []}] if hot is not None else []),
            ],
            "position": None if position is None else _engine_column(position),
        }

    async def note_failure(self, caller: Caller, sql: str, error: TraceplaneError) -> None:
        """Counted; and audited, if it is a denial."""
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
    found, last = set[str](), "/"  # which no path begins with
    for files in chosen:
        for group, _ in files.groups:
            for path in group:
                if not path.startswith(last):  # most are where the one before was
                    last = path[: path.find("/", path.find("/") + 1) + 1]
                    found.add(last[:-1])
    return sorted(found)


def key(relation: Relation) -> Pin:
    return relation.dataset_id, relation.as_of


def _pin_text(pin: Pin) -> str:
    dataset_id, moment = pin
    return dataset_id if moment is None else f"{dataset_id}@{moment}"


class Found:
    """The datasets of a query, virtual ones and what is below them included; all in one snapshot."""

    def __init__(self, tx: Transaction, org: str, as_of: AsOf) -> None:
        self._tx, self._org, self._as_of = tx, org, as_of
        self.datasets: dict[Pin, PinnedDataset] = {}
        self._versions: dict[Pin, Mapping[str, int]] = {}

    def sql_of(self, relation: Relation) -> str | None:
        return self.datasets[key(relation)].sql

    def hidden_of(self, relation: Relation, caller: Caller) -> frozenset[str]:
        """The columns that the caller may not see of it."""
        return frozenset() if caller.sees_pii else self.datasets[key(relation)].pii

    def at(self, pin: Pin) -> datetime | None:
        """The time as of which a dataset is read."""
        moment = pin[1]
        return moment if isinstance(moment, datetime) else None if moment is not None else self._as_of.at

    async def read(self, relations: Iterable[Relation]) -> None:
        waiting = {key(relation) for relation in relations}
        asked: set[str] = set()
        while waiting:
            for moment in {pin[1] for pin in waiting}:
                await self._read_at(moment, [name for name, m in waiting if m == moment])
            asked |= {self.datasets[pin].dag for pin in waiting}
            below = {
                (read, pin[1])
                for pin in waiting
                if (sql := self.datasets[pin].sql) is not None
                for read in virtual.reads(sql)
            }
            waiting = below - self.datasets.keys()
        if unknown := set(self._as_of.versions) - asked:
            raise InvalidInput(
                "query.version_of_nothing",
                "a version is given of a DAG that the query reads nothing of",
                value=min(unknown),
                next_step="leave it out",
            )

    async def _read_at(self, moment: Moment, names: list[str]) -> None:
        versions, at = self._as_of.versions, self.at(("", moment))
        if isinstance(moment, int):
            # A version is one of the dataset's own DAG, which has to be known first.
            now = await pinned.datasets(self._tx, self._org, names)
            versions = {dataset.dag: moment for dataset in now.values()}
        elif moment is not None:
            versions = {}
        found = await pinned.datasets(self._tx, self._org, names, versions=versions, at=at)
        for name in names:
            self.datasets[name, moment] = _checked(
                name, found.get(name), at, version=versions.get(found[name].dag) if name in found else None
            )


def _nothing_then(name: str, dag: str, at: datetime | None, version: int | None) -> NotFound:
    if version is not None:
        problem, step = (
            f"version {version} of DAG {dag} has no such dataset",
            f"see `traceplane versions {dag}`",
        )
    elif at is not None:
        problem, step = f"the dataset was not there at {at.isoformat()}", "ask for a later time"
    else:
        problem = f"no version of DAG {dag} that serves has the dataset"
        step = f"deploy {dag}; if it is being built, `traceplane versions {dag}` says how far it is"
    return NotFound("query.nothing_then", problem, value=name, next_step=step)


def _checked(
    name: str, dataset: PinnedDataset | None, at: datetime | None, *, version: int | None
) -> PinnedDataset:
    if dataset is None:
        raise NotFound(
            "query.unknown_relation",
            "there is no such dataset, or it is not granted",
            value=name,
            next_step="see `traceplane datasets`; a name with other characters than letters goes in double quotes",
        )
    if dataset.generation_id is None:
        raise _nothing_then(name, dataset.dag, at, version)
    if dataset.storage == "postgres" and at is not None:
        raise InvalidInput(
            "query.hot_dataset",
            "the rows of this dataset are in a hot table, which keeps nothing of earlier times",
            value=name,
            next_step="ask for it as it is now, or as of a version",
        )
    gone = dataset.forgotten_until
    if at is not None and gone is not None and at < gone:
        raise Conflict(
            "query.history_gone",
            f"replaced rows of the dataset were collected up to {gone.isoformat()}",
            value=name,
            next_step="ask for a later time",
        )
    return dataset


def _views(read: Expanded, datasets: Mapping[Pin, PinnedDataset], caller: Caller) -> list[dict[str, Any]]:
    """Virtual datasets as relations of the engine, without what the caller may not see: what is below them does not
    have it either."""
    if caller.sees_pii or not any(
        datasets[key(r)].pii for r in (*read.stored, *(v.relation for v in read.views))
    ):
        return [_view(view.relation.name, view.sql) for view in read.views]
    columns = {r.name: [c.name for c in datasets[key(r)].columns] for r in read.stored}
    hidden = {r.name: datasets[key(r)].pii for r in read.stored}
    views = []
    for view in read.views:
        name, own = view.relation.name, datasets[key(view.relation)].pii
        sql, left, hidden[name] = virtual.without(view, columns, hidden, own)
        columns[name] = [*left, *hidden[name]]
        views.append(_view(name, sql))
    return views


async def as_job(tx: Transaction, caller: Caller, sql: str, versions: Mapping[str, int]) -> JobQuery:
    """The query over the generations that are served in this transaction, in Spark's dialect. Personal data is left
    out, whoever asks: the result is a dataset, which others may read."""
    if "\0" in sql:  # Postgres cannot store it
        raise InvalidInput("query.malformed", "a query that is handed over must not hold a NUL character")
    gated = await asyncio.to_thread(gate.admit, sql)
    found = Found(tx, caller.org, AsOf(versions))
    await found.read(gated.relations)
    read = await asyncio.to_thread(virtual.expand, gated.relations, found.sql_of)
    names = {pin: f"#{number}" for number, pin in enumerate(dict.fromkeys(map(key, read.stored)))}
    for pin in names:
        if found.at(pin) is not None or found.datasets[pin].storage != "parquet":
            raise InvalidInput(
                "query.not_for_a_job",
                "a result dataset is computed from files of versions, not from hot tables or as of a time",
                value=_pin_text(pin),
                next_step="ask as of a version; compact hot rows, and query what was compacted",
            )
        if not visible_columns(found.datasets[pin], replace(caller, sees_pii=False)):
            raise _no_columns(found.datasets[pin])
    views = await asyncio.to_thread(_views, read, found.datasets, replace(caller, sees_pii=False))
    over = [*(view.reads for view in read.views), gated.relations]
    return JobQuery(
        tuple(_job_input(name, found.datasets[pin]) for pin, name in names.items()),
        [
            {
                "name": view["name"],
                "sql": spark_dialect.translated(view["sql"], [r.name for r in reads]),
                "reads": {r.name: names[key(r)] for r in reads if key(r) in names},
            }
            for view, reads in zip([*views, _view("tp_result", gated.sql)], over, strict=True)
        ],
    )


def _job_input(name: str, dataset: PinnedDataset) -> JobInput:
    seen = tuple(c.name for c in dataset.columns if c.name.lower() not in dataset.pii)
    return JobInput(name, dataset, seen if dataset.pii else ())


def _no_columns(dataset: PinnedDataset) -> Conflict:
    return Conflict(
        "query.no_columns",
        "nothing is known of the dataset's columns yet, or none of them may be seen",
        value=dataset.dataset_id,
        next_step="wait for its first rows, or declare its columns in the DAG file",
    )


def _view(name: str, sql: str) -> dict[str, Any]:
    return {"name": name, "columns": [], "groups": [], "sql": sql}


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
    held: list[bytes], rest: AsyncGenerator[bytes] | None, forget: Callable[[], Awaitable[None]]
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
        await forget()


def _hash(sql: str) -> str:
    return hashlib.sha256(sql.encode("utf-8", "replace")).hexdigest()
