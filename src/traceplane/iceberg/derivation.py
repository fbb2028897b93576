"""From the files of a dataset to the metadata of a table, and the derived files that it names.

Commits are cut into stretches by their ids, so that a new or replaced commit changes only the stretch it is in. Of a
table of a million files, no process has more than the ids of its commits, and the files of a few stretches: manifests
are made from the catalog's rows, a stretch at a time. Only the numbers of hidden rows are in the files themselves:
the query engine finds them, with the condition by which queries leave them out.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any
from uuid import UUID

import msgspec

from traceplane.adapters.object_store import DERIVED, relative
from traceplane.errors import Conflict, TooLarge, TraceplaneError
from traceplane.iceberg.column_types import IcebergColumns, NoIcebergType, iceberg_columns
from traceplane.iceberg.derived_files import DerivedFiles, hashed
from traceplane.iceberg.manifests import (
    DATA,
    DELETES,
    PARTITIONED,
    UNPARTITIONED,
    DataFile,
    DeleteFile,
    Manifest,
    data_manifest,
    delete_manifest,
    manifest_list,
)
from traceplane.iceberg.partitioning import Partitioning, partitioning_of
from traceplane.iceberg.position_deletes import position_deletes
from traceplane.iceberg.table_metadata import Snapshot, table_metadata
from traceplane.model.positions import Range, kept
from traceplane.postgres import pinned
from traceplane.postgres.database import Database
from traceplane.postgres.pinned import ListedCommit, PinnedDataset, StoredCommit
from traceplane.query.datasets import QueryCaller
from traceplane.query.service import Queries
from traceplane.query.wire import FileGroup
from traceplane.runtime.in_parallel import in_parallel

_FORMAT = 1
"""Of derived files: part of their names, so that a change of it makes them anew."""
_COMMITS_PER_STRETCH, _MOST_COMMITS_PER_STRETCH = 500, 2000
_MOST_FILES_PER_STRETCH = 10_000
_STRETCHES_AT_ONCE = 4
_MOST_REMEMBERED = 20_000
_EVERYTHING = (-(2**63), 2**63 - 1)
_ROW_NUMBERS = frozenset({"filename", "file_row_number"})
"""By these names, the engine finds rows in their files."""


@dataclass(frozen=True, slots=True)
class DerivedTable:
    metadata: dict[str, Any]
    metadata_location: str
    folders: tuple[str, ...]
    """In the object store: everything that a reader needs is in one of them."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the manifests of a table depend on, besides its commits."""

    dataset: PinnedDataset
    columns: IcebergColumns
    arrow_types: Mapping[str, str]
    partitioning: Partitioning | None
    folder: str
    """Of its derived files."""
    day: date

    def path(self, name: str) -> str:
        return f"{self.folder}/{self.day}/{name}"


Kept = tuple[Range, ...] | None
"""The positions of a commit that count; None: all."""
_Part = tuple[int, Kept]
"""A commit, by its id."""


@dataclass(slots=True)
class Cut:
    """The commits of a stretch."""

    ids: array[int] = field(default_factory=lambda: array("q"))
    kept: dict[int, Kept] = field(default_factory=dict)
    """Of those of which some positions do not count."""
    files: int = 0

    @property
    def parts(self) -> list[_Part]:
        return [(commit_id, self.kept.get(commit_id)) for commit_id in self.ids]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The manifests of some commits."""

    key: str
    manifests: tuple[Manifest, ...]
    bytes: int
    newest: datetime
    folders: frozenset[str]
    """Of their files."""


class Derivation:
    def __init__(self, queries: Queries, derived: DerivedFiles) -> None:
        self._queries, self._derived = queries, derived
        self._stretches: OrderedDict[tuple[date, str], _Stretch] = OrderedDict()

    async def table(
        self,
        database: Database,
        caller: QueryCaller,
        dataset: PinnedDataset,
        cuts: Sequence[Cut],
        *,
        org_id: UUID,
        today: date,
    ) -> DerivedTable:
        """`cuts`: what `cut` made of its commits. `caller`: for whom the engine works, if it must."""
        shape = await asyncio.to_thread(_shape, dataset, org_id, today)

        async def stretch(some: Cut) -> _Stretch:
            return await self._stretch(database, caller, shape, some)

        stretches = await in_parallel(stretch, cuts, _STRETCHES_AT_ONCE)
        metadata = table_metadata(
            table_uuid=dataset.dataset_uuid,
            location=self._location(shape.folder),
            columns=shape.columns,
            partitioning=shape.partitioning,
            snapshot=await self._snapshot(shape, stretches) if stretches else None,
            properties={
                "traceplane.dataset": dataset.dataset_id,
                "traceplane.generation": str(dataset.generation_id),
                "traceplane.version": str(dataset.version),
            },
        )
        path = shape.path(f"{hashed(metadata)}.metadata.json")
        await self._derived.ensure(path, lambda: msgspec.json.encode(metadata))
        data = {folder for stretch in stretches for folder in stretch.folders}
        return DerivedTable(metadata, self._location(path), (*sorted(data), shape.folder))

    async def _snapshot(self, shape: _Shape, stretches: Sequence[_Stretch]) -> Snapshot:
        listed = [manifest for stretch in stretches for manifest in stretch.manifests]
        key = hashed([stretch.key for stretch in stretches])
        snapshot_id = int(key[:15], 16) + 1
        path = shape.path(f"{key}-snapshot.avro")
        await self._derived.ensure(path, lambda: manifest_list(listed, snapshot_id))
        of_data, of_deletes = ([m for m in listed if m.content == content] for content in (DATA, DELETES))
        return Snapshot(
            snapshot_id,
            self._location(path),
            int(max(stretch.newest for stretch in stretches).timestamp() * 1000),
            files=sum(m.files for m in of_data),
            rows=sum(m.rows for m in of_data),
            bytes=sum(stretch.bytes for stretch in stretches),
            delete_files=sum(m.files for m in of_deletes),
            hidden_rows=sum(m.rows for m in of_deletes),
        )

    async def _stretch(self, database: Database, caller: QueryCaller, shape: _Shape, cut: Cut) -> _Stretch:
        parts = cut.parts
        key = hashed(*(_FORMAT, self._location(DERIVED), shape.columns.fields, shape.partitioning), parts)
        made = self._stretches.get((shape.day, key))
        if made is None:
            made = await self._make(database, caller, shape, parts, key)
            self._stretches[shape.day, key] = made
        self._stretches.move_to_end((shape.day, key))
        while len(self._stretches) > _MOST_REMEMBERED:
            self._stretches.popitem(last=False)
        return made

    async def _make(
        self, database: Database, caller: QueryCaller, shape: _Shape, parts: Sequence[_Part], key: str
    ) -> _Stretch:
        async with database.autocommit() as tx:
            stored = await pinned.stored(tx, [commit_id for commit_id, _ in parts])
        if len(stored) < len(parts):
            raise Conflict(
                "iceberg.history_gone",
                "replaced rows of the dataset have just been deleted",
                value=shape.dataset.dataset_id,
                next_step="load the table again, of a later time",
            )
        files = await asyncio.to_thread(self._data_files, shape, parts, stored)
        made = []
        for spec_id in (UNPARTITIONED, PARTITIONED):
            some = [file for file in files if (file.partition is not None) == (spec_id == PARTITIONED)]
            if some:
                made.append(await self._data(shape, key, spec_id, some))
        if deletes := await self._deletes(database, caller, shape, parts, stored, key):
            made.append(deletes)
        newest = max(commit.committed_at for commit in stored.values())
        paths = (file["path"] for commit in stored.values() for file in commit.files)
        folders = frozenset(path[: path.index("/staging/")] for path in paths)
        return _Stretch(key, tuple(made), sum(file.bytes for file in files), newest, folders)

    def _data_files(
        self, shape: _Shape, parts: Sequence[_Part], stored: Mapping[int, StoredCommit]
    ) -> list[DataFile]:
        root = self._location(DERIVED).removesuffix(DERIVED)
        files = []
        for commit_id, left in parts:
            for file in stored[commit_id].files:
                statistics = file.get("statistics") or {}
                partition = None
                # Deletes apply within a partition; the files that they name are in none.
                if shape.partitioning is not None and left is None:
                    partition = shape.partitioning.value(statistics, file["rows"])
                location = root + relative(file["path"])
                files.append(
                    DataFile(location, file["rows"], file["bytes"], statistics, commit_id, partition)
                )
        return files

    async def _data(self, shape: _Shape, key: str, spec_id: int, files: Sequence[DataFile]) -> Manifest:
        partitioning = shape.partitioning if spec_id == PARTITIONED else None
        path = shape.path(f"{key}-data-{spec_id}.avro")
        size = await self._derived.ensure(
            path, lambda: data_manifest(files, shape.columns, shape.arrow_types, partitioning)
        )
        periods = [file.partition for file in files if file.partition is not None]
        return Manifest(
            *(self._location(path), size, spec_id, DATA, len(files), sum(file.rows for file in files)),
            commit_id=max(file.commit_id for file in files),
            partitions=(min(periods), max(periods)) if periods else None,
        )

    async def _deletes(
        self,
        database: Database,
        caller: QueryCaller,
        shape: _Shape,
        parts: Sequence[_Part],
        stored: Mapping[int, StoredCommit],
        key: str,
    ) -> Manifest | None:
        column = shape.dataset.position_column
        paths: dict[tuple[Range, ...], list[str]] = {}
        for commit_id, left in parts:
            if left is not None:
                paths.setdefault(left, []).extend(file["path"] for file in stored[commit_id].files)
        if not paths:
            return None
        assert column is not None, "only positions say what is hidden"
        if column.name.lower() in _ROW_NUMBERS:
            raise _unsupported(
                shape.dataset, f"its position column is called {column.name}, and some rows are replaced"
            )
        groups = [FileGroup(files, column.all_values(kept)) for kept, files in paths.items()]
        numbers = await self._numbers(database, caller, shape.dataset, groups)
        if not numbers:
            return None
        root = self._location(DERIVED).removesuffix(DERIVED)
        by_location = {root + path: rows for path, rows in numbers.items()}
        path = shape.path(f"{key}-deletes.parquet")
        size = await self._derived.ensure(path, lambda: position_deletes(by_location))
        rows = sum(map(len, numbers.values()))
        commit_id = max(commit_id for commit_id, _ in parts)
        file = DeleteFile(
            *(self._location(path), rows, size, min(by_location), max(by_location)), commit_id=commit_id
        )
        listed = shape.path(f"{key}-deletes.avro")
        size = await self._derived.ensure(listed, lambda: delete_manifest([file], shape.columns))
        return Manifest(*(self._location(listed), size, UNPARTITIONED, DELETES, 1, rows), commit_id=commit_id)

    async def _numbers(
        self, database: Database, caller: QueryCaller, dataset: PinnedDataset, groups: Sequence[FileGroup]
    ) -> dict[str, list[int]]:
        try:
            return await self._queries.left_out(database, caller, dataset, groups)
        except TraceplaneError as error:
            if error.code != "query.too_large":
                raise
            raise TooLarge(
                "iceberg.too_many_hidden",
                "newer commits have replaced more rows of the dataset than a table can name",
                value=dataset.dataset_id,
                next_step="compute the ranges that were replaced in part again (`traceplane backfill`), or use queries",
            ) from None

    def _location(self, path: str) -> str:
        return self._derived.store.location(path)


def _shape(dataset: PinnedDataset, org_id: UUID, today: date) -> _Shape:
    try:
        columns = iceberg_columns(dataset.columns)
    except NoIcebergType as error:
        raise _unsupported(dataset, f"{error}, which Iceberg does not have") from None
    generation = dataset.row_generation_id or dataset.generation_id
    return _Shape(
        dataset,
        columns,
        {column.name: column.type for column in dataset.columns},
        partitioning_of(dataset, columns),
        f"{DERIVED}/{org_id}/{dataset.dataset_uuid}/{generation}",
        today,
    )


def _unsupported(dataset: PinnedDataset, why: str) -> Conflict:
    return Conflict(
        "iceberg.unsupported",
        f"the dataset cannot be an Iceberg table: {why}",
        value=dataset.dataset_id,
        next_step="query it with SQL, or have a job write it with another column or type",
    )


async def cut(dataset: PinnedDataset, commits: AsyncIterable[ListedCommit]) -> list[Cut]:
    """Whether a stretch ends with a commit depends on its id alone, mostly.

    It has what queries read (`query.catalog`): a commit without positions is left out, and without the column nothing
    says which rows are replaced.
    """
    stored = {column.name for column in dataset.columns} - dataset.absent
    cuts: list[Cut] = []
    some = Cut()
    async for commit in commits:
        if commit.hidden and dataset.position is not None:
            left = kept(commit.positions, _EVERYTHING, commit.hidden)
            if left is not None:
                if not left:
                    continue
                if dataset.position in stored:
                    some.kept[commit.commit_id] = tuple(left)
        some.ids.append(commit.commit_id)
        some.files += commit.files
        scattered = commit.commit_id * 0x9E3779B97F4A7C15 % 2**64 >> 40
        if (
            scattered % _COMMITS_PER_STRETCH == 0
            or len(some.ids) == _MOST_COMMITS_PER_STRETCH
            or some.files >= _MOST_FILES_PER_STRETCH
        ):
            cuts.append(some)
            some = Cut()
    return [*cuts, some] if some.ids else cuts
