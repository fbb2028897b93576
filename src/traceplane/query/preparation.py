"""Everything that a query needs before it runs: its text past the gate, its datasets, and the files to read.

Datasets and file lists are read in one snapshot, whatever is committed in the meantime.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_store import StoredFile, staging_prefix_of
from traceplane.errors import Conflict, TooLarge
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.postgres import pinned
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.pinned import PinnedDataset
from traceplane.query import catalog
from traceplane.query.catalog import Catalog, ChosenFiles, FileList, TooManyFiles
from traceplane.query.datasets import AsOf, Pin, QueryCaller, QueryDatasets, pin_of, some_columns
from traceplane.query.duckdb_types import type_of
from traceplane.query.engine_pool import ReadPart
from traceplane.query.hot_rows import export
from traceplane.query.store_files import name_of
from traceplane.query.wire import EngineColumn, EngineQuery, EngineRelation, FileGroup, Format, QueryLimits
from traceplane.sql import gate, virtual
from traceplane.sql.gate import Gated, Relation
from traceplane.sql.virtual import Expanded

_MOST_LEFT_OUT_BYTES = 128 << 20
"""Of the numbers of rows, which have eight each."""


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A query that passed the gate, with everything needed to run it."""

    query: EngineQuery
    datasets: Mapping[Pin, PinnedDataset]
    chosen: tuple[ChosenFiles, ...]
    held: contextlib.AsyncExitStack
    """Releases files of this query: the rows of hot tables, and its files of S3 in the cache."""
    read: ReadPart | None = None
    """Reads the files of S3 that are not in the cache."""

    async def release(self) -> None:
        await self.held.aclose()


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What a query reads, as of one moment in the database."""

    datasets: QueryDatasets
    expanded: Expanded
    files: Mapping[Pin, FileList]
    hot: Mapping[Pin, FileGroup]
    """Files with the rows of hot tables."""


class OverLimit(Exception):
    """The files that a query would read have more bytes than its caller lets it read."""

    def __init__(self, plan: PlannedFiles) -> None:
        super().__init__(f"{plan.bytes} bytes")
        self.plan = plan


@dataclass(frozen=True, slots=True)
class PlannedFiles:
    """What a query reads, before it runs."""

    datasets: Mapping[Pin, PinnedDataset]
    files: int
    of_files: int
    bytes: int
    too_many: bool = False
    """Whether there are more files than the engine can open. They were not counted: these are those of the dataset."""

    @classmethod
    def of(cls, datasets: Mapping[Pin, PinnedDataset], chosen: Iterable[ChosenFiles]) -> PlannedFiles:
        each = list(chosen)
        return cls(
            datasets, sum(c.files for c in each), sum(c.of_files for c in each), sum(c.bytes for c in each)
        )


class Preparation:
    """`object_root` is the folder of the object store; None for one in S3, of which `open_cache` has copies."""

    def __init__(
        self,
        *,
        object_root: Path | None,
        limits: QueryLimits,
        open_cache: Callable[[], Awaitable[ObjectCache]] | None,
    ) -> None:
        self._object_root = object_root
        self._limits = limits
        self._open_cache = open_cache
        self._cache: ObjectCache | None = None
        self._opening = asyncio.Lock()
        self.catalog = Catalog()

    async def close(self) -> None:
        if self._cache is not None:
            await self._cache.close()

    async def prepare(
        self,
        database: Database,
        caller: QueryCaller,
        sql: str,
        format_: Format,
        as_of: AsOf,
        max_rows: int | None,
        most_bytes: int | None = None,
    ) -> PreparedQuery:
        """`most_bytes`: raises `OverLimit` if its files have more."""
        root = await self._root()
        gated = await asyncio.to_thread(gate.admit, sql)
        async with contextlib.AsyncExitStack() as held:
            try:
                snapshot = await self._read(database, held, caller, gated, as_of)
            except OverLimit as over:
                if most_bytes is not None:
                    raise
                raise _too_many_files(over.plan) from None
            chosen = await asyncio.to_thread(_choose, snapshot)
            plan = PlannedFiles.of(snapshot.datasets.by_pin, chosen)
            if most_bytes is not None and plan.bytes > most_bytes:
                raise OverLimit(plan)
            in_parts = await self._hold(database, held, chosen)
            query = EngineQuery(
                sql=gated.sql,
                relations=await asyncio.to_thread(
                    _relations, _Places(root, in_parts), snapshot, chosen, caller
                ),
                format=format_,
                roots=[
                    *_folders(root, chosen),
                    *{os.path.dirname(path) for group in snapshot.hot.values() for path in group.paths},
                ],
                limits=replace(
                    self._limits, max_rows=min(self._limits.max_rows, max_rows or self._limits.max_rows)
                ),
                in_parts={name_of(file.path): file.bytes for file in in_parts},
            )
            return PreparedQuery(
                query, snapshot.datasets.by_pin, chosen, held.pop_all(), self._reader_of(in_parts)
            )

    async def plan(self, database: Database, caller: QueryCaller, sql: str, as_of: AsOf) -> PlannedFiles:
        """What a query would read, by the same rights and rules."""
        gated = await asyncio.to_thread(gate.admit, sql)
        async with contextlib.AsyncExitStack() as held:
            try:
                snapshot = await self._read(database, held, caller, gated, as_of, with_hot=False)
            except OverLimit as over:
                return over.plan
            return PlannedFiles.of(snapshot.datasets.by_pin, await asyncio.to_thread(_choose, snapshot))

    async def without_rows(
        self, database: Database, caller: QueryCaller, sql: str, as_of: AsOf
    ) -> PreparedQuery | None:
        """A query with the columns of this one, whose names differ from each other, and no rows: it reads no file. None
        if only the files have the types of what it reads."""
        gated = await asyncio.to_thread(gate.admit, sql)
        async with contextlib.AsyncExitStack() as held:
            snapshot = await self._read(database, held, caller, gated, as_of, with_hot=False)
            nothing = tuple(ChosenFiles([], 0, 0) for _ in snapshot.expanded.stored)
            relations = await asyncio.to_thread(_relations, _Places("", ()), snapshot, nothing, caller)
            if any(column.type is None for relation in relations for column in relation.columns):
                return None
            query = EngineQuery(
                sql=f"select * from ({gated.sql}) limit 0",  # noqa: S608 -- written by the gate, and checked again
                relations=relations,
                format="arrow",
                roots=[],
                limits=self._limits,
            )
            return PreparedQuery(query, snapshot.datasets.by_pin, nothing, held.pop_all())

    async def left_out(
        self, database: Database, dataset: PinnedDataset, groups: Sequence[FileGroup]
    ) -> PreparedQuery:
        """The numbers of the rows that queries do not read of these files, by file."""
        root = await self._root()
        chosen = ChosenFiles(list(groups), sum(len(g.paths) for g in groups), len(groups))
        column = next(c for c in dataset.columns if c.name == dataset.position)
        async with contextlib.AsyncExitStack() as held:
            in_parts = await self._hold(database, held, [chosen])
            places = _Places(root, in_parts)
            relation = EngineRelation(
                "tp_d0",
                [],
                [FileGroup([places.of(path) for path in g.paths], g.kept, g.rows) for g in groups],
                _engine_column(column),
                left_out=True,
            )
            query = EngineQuery(
                sql="select filename, list(file_row_number) as numbers from tp_d0 group by filename",
                relations=[relation],
                format="arrow",
                roots=_folders(root, [chosen]),
                limits=replace(self._limits, max_rows=chosen.files, max_bytes=_MOST_LEFT_OUT_BYTES),
                in_parts={name_of(file.path): file.bytes for file in in_parts},
            )
            return PreparedQuery(query, {}, (chosen,), held.pop_all(), self._reader_of(in_parts))

    async def _root(self) -> str:
        """Where the files of the object store are read: in the store itself, or in the cache of S3."""
        if self._object_root is not None:
            return str(self._object_root)
        async with self._opening:  # on the first query, so that a gateway starts without the store
            if self._cache is None:
                assert self._open_cache is not None, "a store in S3 has a cache"
                self._cache = await self._open_cache()
        return str(self._cache.files)

    async def _read(
        self,
        database: Database,
        held: contextlib.AsyncExitStack,
        caller: QueryCaller,
        gated: Gated,
        as_of: AsOf,
        *,
        with_hot: bool = True,
    ) -> _Snapshot:
        async with database.snapshot() as tx:
            datasets = QueryDatasets(tx, caller.org, as_of)
            await datasets.read(gated.relations, caller)
            expanded = await asyncio.to_thread(
                virtual.expand, gated.relations, datasets.sql_of, lambda r: datasets.hidden_of(r, caller)
            )
            relations: dict[Pin, list[Relation]] = {}
            for relation in expanded.stored:
                relations.setdefault(pin_of(relation), []).append(relation)
            try:
                files = {
                    pin: await self.catalog.files(
                        tx, datasets.by_pin[pin], [r.conditions for r in same], datasets.at(pin)
                    )
                    for pin, same in relations.items()
                }
            except TooManyFiles as found:
                size = (await pinned.sizes(tx, [found.generation_id]))[found.generation_id].bytes
                plan = PlannedFiles(datasets.by_pin, found.commits, found.commits, size, too_many=True)
                raise OverLimit(plan) from None
            read = {pin: datasets.by_pin[pin] for pin in relations} if with_hot else {}
            hot = await self._hot_rows(tx, held, read)
        return _Snapshot(datasets, expanded, files, hot)

    async def _hot_rows(
        self, tx: Transaction, held: contextlib.AsyncExitStack, datasets: Mapping[Pin, PinnedDataset]
    ) -> dict[Pin, FileGroup]:
        """Files with the rows in the tables of hot datasets."""
        generations = {
            pin: dataset.row_generation_id
            for pin, dataset in datasets.items()
            if dataset.storage == "postgres" and dataset.row_generation_id is not None
        }
        if not generations:
            return {}
        from traceplane.columnar.arrow_types import schema_of  # with pyarrow

        place = self._cache.outputs if self._cache is not None else self._object_root
        scratch = held.enter_context(tempfile.TemporaryDirectory(prefix=".query-", dir=place))
        os.chmod(scratch, 0o755)  # noqa: S103 -- the process of a query lacks even root's privileges
        files = {}
        for pin, generation in generations.items():
            schema = schema_of(SchemaColumn(c.name, c.type) for c in datasets[pin].columns)
            assert schema is not None, "every type of a hot table has an Arrow name"
            files[pin] = await export(tx, generation, Path(scratch), schema)
        return files

    async def _hold(
        self, database: Database, held: contextlib.AsyncExitStack, chosen: Iterable[ChosenFiles]
    ) -> list[StoredFile]:
        """The files that are to be read in parts; all others are there."""
        if self._cache is None:
            return []
        stored = await self._stored(database, chosen)
        return await held.enter_async_context(self._cache.holding_some(stored))

    def _reader_of(self, files: Sequence[StoredFile]) -> ReadPart | None:
        cache = self._cache
        if cache is None or not files:
            return None
        return lambda number, start, count: cache.read(files[number], start, count)

    async def _stored(self, database: Database, chosen: Iterable[ChosenFiles]) -> list[StoredFile]:
        """The files of a query with their sizes, which the cache checks."""
        paths = {path for files in chosen for group in files.groups for path in group.paths}
        task_ids = {prefix.task_id for path in paths if (prefix := staging_prefix_of(path)) is not None}
        async with database.autocommit() as tx:
            sizes = await pinned.file_sizes(tx, sorted(task_ids))
        if missing := paths - sizes.keys():
            raise Conflict("query.file_unreadable", "a file of a dataset is missing", value=min(missing))
        return [StoredFile(path, sizes[path]) for path in sorted(paths)]


def _too_many_files(plan: PlannedFiles) -> TooLarge:
    return TooLarge(
        "query.too_many_files",
        f"the query may read more than {catalog.MOST_FILES:,} of {plan.of_files:,} files",
        value=plan.of_files,
        next_step="narrow it by the position column or by a column in whose order files are written (`cluster_by`), or"
        " have Spark run it: `--engine spark`",
    )


def _choose(snapshot: _Snapshot) -> tuple[ChosenFiles, ...]:
    """For each stored relation, in order."""
    return tuple(
        catalog.choose(snapshot.files[pin_of(r)], snapshot.datasets.of(r), r.conditions)
        for r in snapshot.expanded.stored
    )


class _Places:
    """Where the engine finds files of the store."""

    def __init__(self, root: str, in_parts: Iterable[StoredFile]) -> None:
        self._root, self._in_parts = root, {file.path for file in in_parts}

    def of(self, path: str) -> str:
        return name_of(path) if path in self._in_parts else f"{self._root}/{path}"


def _relations(
    places: _Places, snapshot: _Snapshot, chosen: tuple[ChosenFiles, ...], caller: QueryCaller
) -> list[EngineRelation]:
    stored = [
        _stored_relation(places, r.name, snapshot.datasets.of(r), files, caller, snapshot.hot.get(pin_of(r)))
        for r, files in zip(snapshot.expanded.stored, chosen, strict=True)
    ]
    views = snapshot.datasets.views(snapshot.expanded, caller)
    return [*stored, *(EngineRelation(view.name, [], [], sql=view.sql) for view in views)]


def _stored_relation(
    places: _Places,
    name: str,
    dataset: PinnedDataset,
    files: ChosenFiles,
    caller: QueryCaller,
    hot: FileGroup | None,
) -> EngineRelation:
    groups = [replace(group, paths=[places.of(path) for path in group.paths]) for group in files.groups]
    if hot is not None:
        groups.append(hot)
    stored = (c for c in dataset.columns if c.name not in dataset.absent)
    position = next((c for c in stored if c.name == dataset.position), None)
    return EngineRelation(
        name,
        [_engine_column(c, absent=c.name in dataset.absent) for c in some_columns(dataset, caller)],
        groups,
        None if position is None else _engine_column(position),
    )


def _engine_column(column: SchemaColumn, *, absent: bool = False) -> EngineColumn:
    return EngineColumn(column.name, type_of(column.type), absent)


def _folders(root: str, chosen: Iterable[ChosenFiles]) -> list[str]:
    """Those that exist: of a store in S3, the cache has no folder for files that are read in parts."""
    return [path for folder in generation_folders(chosen) if os.path.isdir(path := f"{root}/{folder}")]


def generation_folders(chosen: Iterable[ChosenFiles]) -> list[str]:
    """The folders of the generations of all files: what is before `/staging/`."""
    folders, last = set[str](), "/"  # no path starts with it
    for files in chosen:
        for group in files.groups:
            for path in group.paths:
                if not path.startswith(last):  # most are in the same folder as the previous one
                    last = path[: path.index("/staging/") + 1]
                    folders.add(last[:-1])
    return sorted(folders)
