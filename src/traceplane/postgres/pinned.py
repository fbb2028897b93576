"""What a query reads. The functions belong in one snapshot (`Database.snapshot`): together they see one state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from traceplane.model.column_types import arrow_type
from traceplane.model.committed_file import CommittedFile, StoredBounds
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.json_object import JsonObject
from traceplane.model.partitions import Partitions
from traceplane.model.positions import Range
from traceplane.model.row_positions import PositionColumn
from traceplane.postgres import personal_data
from traceplane.postgres.database import Database, Transaction, statements
from traceplane.postgres.personal_data import DeclaredColumn, Origin, effective
from traceplane.postgres.registry import partitions_of
from traceplane.postgres.rights import Owner, owners_of, roles_of
from traceplane.postgres.versions import Version

_SQL = statements("pinned")
COMMITS_PER_PAGE = 10_000
_LOOKS, _BETWEEN_LOOKS_SECONDS = 50, 0.02


@dataclass(frozen=True, slots=True)
class PinnedDataset:
    dataset_uuid: UUID
    dataset_id: str
    dag: str
    version: int | None
    """Of the DAG; None if no version was active at the requested time."""
    generation_id: UUID | None
    row_generation_id: UUID | None
    """Where the rows are: an aggregator's ranges are read from the dataset it aggregates."""
    storage: str
    description: str
    columns: tuple[SchemaColumn, ...]
    """The merged schema of the files, and the declared columns that they lack."""
    pii: frozenset[str]
    """Columns that any definition of these rows marks as personal data, in lower case; `with_marks` adds those that
    are computed from some."""
    position: str | None
    cursor: int | None
    row_version: str
    """Changes with every commit of the rows' generation."""
    forgotten_until: datetime | None
    sql: str | None = None
    """Of a virtual dataset, in the version that is read."""
    source: str | None = None
    """The source whose events it consists of; None if it has rows."""
    absent: frozenset[str] = frozenset()
    """The columns that are declared, but that no file has yet: they are null."""
    partitions: Partitions = Partitions()
    """Those of the dataset that has the rows."""
    definitions: tuple[tuple[DeclaredColumn, ...], ...] = ()
    """The columns that it declares itself: now, and in the version that is read."""
    read_roles: tuple[str, ...] | None = None
    write_roles: tuple[str, ...] | None = None
    """Those that hold now, whatever version is read."""
    owners: tuple[Owner, ...] = ()
    """Other datasets that have the rows, or from which they were found."""

    @property
    def declassified(self) -> dict[str, str]:
        """The columns that are no personal data although they are computed from some, and why."""
        shown = self.definitions[-1] if self.definitions else ()
        return {c.name.lower(): c.declassified for c in shown if c.declassified}

    @property
    def position_column(self) -> PositionColumn | None:
        if self.position is None:
            return None
        types = {column.name: column.type for column in self.columns}
        return PositionColumn(self.position, types.get(self.position, "int64"), self.partitions)


class CommitFiles(msgspec.Struct, frozen=True, gc=False):
    commit_id: int
    first: int
    last: int
    bytes: int
    rows: int
    paths: list[str]


class StoredCommit(msgspec.Struct, frozen=True, gc=False):
    """A commit with everything that is known of its files that have rows."""

    commit_id: int
    committed_at: datetime
    files: list[CommittedFile]


class FileStatistics(msgspec.Struct, frozen=True):
    """Of one column in one file."""

    rows: int
    values: StoredBounds | None
    """As its manifest has them (`model.pruning.bounds`)."""


class GenerationSize(msgspec.Struct, frozen=True):
    """What readers see of a generation."""

    commits: int
    rows: int
    bytes: int
    at_most: bool = False
    """Whether some of the rows have been replaced; only the files show how many."""


class VirtualInput(msgspec.Struct, frozen=True):
    name: str
    dataset_id: str


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A job that writes or reads a generation."""

    dag: str
    job: str
    operator: str
    writes: bool
    output: str | None
    """The name that it writes the generation under; as what follows, of a writer only."""
    config: JsonObject
    virtual_inputs: list[VirtualInput]

    @property
    def name(self) -> str:
        return f"{self.dag}/{self.job}"


class ProducerInput(msgspec.Struct, frozen=True):
    """What the producer of a generation reads."""

    name: str
    dataset_id: str
    columns: list[str]


async def datasets(
    tx: Transaction,
    org: str,
    dataset_ids: Sequence[str] | None,
    *,
    versions: Mapping[str, int] | None = None,
    at: datetime | None = None,
) -> dict[str, PinnedDataset]:
    """Those of the datasets that exist, or all of them."""
    requested = versions or {}
    rows = await tx.rows(
        _SQL["datasets"],
        org,
        None if dataset_ids is None else list(dataset_ids),
        list(requested),
        list(requested.values()),
        at,
    )
    return {row["dataset_id"]: _dataset(row) for row in rows}


async def names(
    tx: Transaction, org: str, *, find: str | None, after: str | None, limit: int | None
) -> list[str]:
    """Of datasets that are served or being built, in order."""
    return [row["dataset_id"] for row in await tx.rows(_SQL["names"], org, find, after, limit)]


def _dataset(row: Any) -> PinnedDataset:
    definitions = [
        d for d in (row["definition"], row["versioned_definition"], row["owner_definition"]) if d is not None
    ]
    declared = [column for d in definitions for column in d["columns"]]
    shown = row["versioned_definition"] or row["definition"]
    own = [d["columns"] for d in (row["definition"], row["versioned_definition"]) if d is not None]
    of_files = [SchemaColumn(**column) for column in row["columns"] or ()]
    # A hot table has all declared columns from the beginning.
    lacking = [] if of_files and shown["storage"] == "postgres" else _declared(row, shown, of_files)
    return PinnedDataset(
        dataset_uuid=row["dataset_uuid"],
        dataset_id=row["dataset_id"],
        dag=row["dag"],
        version=row["version"],
        generation_id=row["generation_id"],
        row_generation_id=row["row_generation_id"],
        storage=shown["storage"],
        description=shown["description"],
        columns=(*of_files, *lacking),
        pii=frozenset(column["name"].lower() for column in declared if column.get("pii")),
        position=row["position_column"],
        cursor=row["cursor"],
        row_version=row["row_version"] or "",
        forgotten_until=row["forgotten_until"],
        sql=shown.get("sql"),
        source=row["source"],
        absent=frozenset(column.name for column in lacking) if of_files else frozenset(),
        partitions=partitions_of(row["row_partitions"]),
        read_roles=roles_of(row["definition"].get("read_roles")),
        write_roles=roles_of(row["definition"].get("write_roles")),
        owners=_owners(row),
        definitions=tuple(msgspec.convert(columns, tuple[DeclaredColumn, ...]) for columns in own),
    )


def _owners(row: Any) -> tuple[Owner, ...]:
    found_in = owners_of(row["found_in"])
    definition = row["owner_definition"]
    if definition is None or definition["dataset_id"] == row["dataset_id"]:
        return found_in
    return ((definition["dataset_id"], roles_of(definition.get("read_roles"))), *found_in)


async def with_marks(tx: Transaction, datasets: Iterable[PinnedDataset]) -> list[PinnedDataset]:
    """The datasets, with all of their columns as `pii` that are personal data, marked or computed from what is."""
    found = list(datasets)
    generations = {d.row_generation_id for d in found if d.row_generation_id is not None and d.sql is None}
    origins = await personal_data.origins(tx, list(generations)) if generations else {}
    return [_with_marks(d, origins.get(d.row_generation_id)) if d.row_generation_id else d for d in found]


def _with_marks(dataset: PinnedDataset, origin: Origin | None) -> PinnedDataset:
    if origin is None:
        return dataset
    if dataset.row_generation_id == dataset.generation_id:
        marks = effective(origin.derived, (*dataset.definitions, *origin.definitions))
    else:
        marks = effective(origin.effective, dataset.definitions)
    names = (column.name.lower() for column in dataset.columns)
    return replace(dataset, pii=marks.personal.union(filter(marks.has, names)))


def _declared(row: Any, definition: JsonObject, of_files: Sequence[SchemaColumn]) -> list[SchemaColumn]:
    """The declared columns that files lack; of an aggregator's ranges, those of the dataset it aggregates."""
    owner = row["owner_definition"] if row["row_generation_id"] != row["generation_id"] else None
    declared = (owner or definition)["columns"] or definition["columns"]
    names = {column.name.lower() for column in of_files}  # SQL ignores case
    return [
        SchemaColumn(c["name"], arrow_type(c["type"]) or c["type"], bool(of_files) or c.get("nullable", True))
        for c in declared
        if c["name"].lower() not in names
    ]


async def last_version_with(tx: Transaction, org: str, dataset_id: str) -> Version | None:
    return await tx.row_as(Version, _SQL["last_version_with"], org, dataset_id)


async def live_count(tx: Transaction, generation_id: UUID) -> int:
    """How many commits readers see now."""
    count: int = await tx.value(_SQL["live_count"], generation_id)
    return count


def _commits_at() -> str:
    """Read at once, or some rows at a time."""
    return _SQL["commits_at"]


async def commits(
    tx: Transaction, generation_id: UUID, at: datetime | None = None
) -> tuple[list[int], dict[int, list[Range]]]:
    """The commits that readers see, now or at a time, ordered by position; and for some of them the positions that
    newer ones have replaced."""
    if at is None:
        ids: list[int] = await tx.value(_SQL["live_ids"], generation_id)
        return ids, await _hidden(tx, generation_id)
    rows = await tx.rows(_commits_at(), generation_id, at, False)
    return [row["commit_id"] for row in rows], _ranges(rows)


async def _hidden(tx: Transaction, generation_id: UUID) -> dict[int, list[Range]]:
    return _ranges(await tx.rows(_SQL["hidden"], generation_id))


def _ranges(rows: Sequence[Any]) -> dict[int, list[Range]]:
    return {row["commit_id"]: [(a, b) for a, b in row["hidden"]] for row in rows if row["hidden"]}


class ListedCommit(NamedTuple):
    commit_id: int
    positions: Range
    hidden: list[Range]
    """Those of them that newer commits have replaced."""
    files: int


async def listed(
    tx: Transaction, generation_id: UUID, at: datetime | None = None
) -> AsyncIterator[ListedCommit]:
    """The commits with rows that readers see, now or at a time, ordered by position; few are in memory at once."""
    if at is not None:
        async for row in tx.stream(_commits_at(), generation_id, at, True):
            hidden = [(a, b) for a, b in row["hidden"] or ()]
            yield ListedCommit(row["commit_id"], (row["range_start"], row["range_end"]), hidden, row["files"])
        return
    replaced = await _hidden(tx, generation_id)
    after = (-(2**63), 0)
    while True:
        page = await tx.row(_SQL["live_page"], generation_id, *after, COMMITS_PER_PAGE)
        assert page is not None
        for commit_id, first, last, files in zip(*page, strict=True):
            yield ListedCommit(commit_id, (first, last), replaced.get(commit_id, []), files)
        if len(page["ids"]) < COMMITS_PER_PAGE:
            return
        after = page["firsts"][-1], page["ids"][-1]


@dataclass(frozen=True, slots=True)
class LiveCommits:
    """Columns of equal length rather than rows, of which there may be a hundred thousand."""

    ids: list[int]
    firsts: list[int]
    lasts: list[int]
    paths: list[str | None]
    """None if a commit has several files, or none."""
    bytes: list[int]
    rows: list[int]
    of_others: dict[int, list[str]]
    hidden: dict[int, list[Range]]


async def live(tx: Transaction, generation_id: UUID) -> LiveCommits:
    """All commits that readers see now, ordered by position, with their files."""
    row = await tx.row(_SQL["live"], generation_id)
    assert row is not None
    ids, single = row["ids"], row["paths"]
    several = [ids[n] for n, path in enumerate(single) if path is None]
    others = {c.commit_id: c.paths for c in await paths(tx, generation_id, several)} if several else {}
    hidden = await _hidden(tx, generation_id)
    return LiveCommits(ids, row["firsts"], row["lasts"], single, row["bytes"], row["rows"], others, hidden)


async def paths(tx: Transaction, generation_id: UUID, commit_ids: Sequence[int] | None) -> list[CommitFiles]:
    """The files of these commits, or of all live ones of a generation."""
    if commit_ids is None:
        rows = await tx.rows(_SQL["live_paths"], generation_id)
    else:
        rows = await tx.rows(_SQL["paths"], list(commit_ids))
    return [CommitFiles(*row) for row in rows]


async def stored(tx: Transaction, commit_ids: Sequence[int]) -> dict[int, StoredCommit]:
    """Those of the commits that still exist."""
    rows = await tx.rows(_SQL["files"], list(commit_ids))
    return {row["commit_id"]: StoredCommit(*row) for row in rows}


async def today(tx: Transaction, before: timedelta = timedelta()) -> date:
    """The day of UTC, now or some time before."""
    day: date = await tx.value(_SQL["today"], before)
    return day


async def settled_moment(database: Database) -> datetime:
    """The present, or a moment just before it, of which everything is known: a commit bears the time at which its
    transaction began, and is seen once it has ended. So whatever began by then must have ended; short transactions are
    waited for. The state as of this moment never changes any more."""
    async with database.autocommit() as tx:
        clock = await tx.row(_SQL["clock"])
    assert clock is not None
    moment: datetime = clock["now"]
    ahead: timedelta = clock["ahead"]
    oldest: datetime | None = None
    for _ in range(_LOOKS):
        await asyncio.sleep(
            _BETWEEN_LOOKS_SECONDS
        )  # a session shows its transaction a little after it has begun
        async with database.autocommit() as tx:
            oldest = await tx.value(_SQL["writing_since"])
        if oldest is None or oldest > moment:
            return moment + ahead
    assert oldest is not None
    return oldest - timedelta(microseconds=1) + ahead


async def file_sizes(tx: Transaction, task_ids: Sequence[UUID]) -> dict[str, int]:
    """Of all files that these tasks committed, by their paths."""
    return {row["path"]: row["bytes"] for row in await tx.rows(_SQL["file_sizes"], list(task_ids))}


async def statistics(
    tx: Transaction, generation_id: UUID, commit_ids: Sequence[int] | None, column: str
) -> dict[int, list[FileStatistics]]:
    """Of a column in each file, by commit: these commits, or all live ones of a generation."""
    if commit_ids is None:
        rows = await tx.rows(_SQL["live_statistics"], generation_id, column)
    else:
        rows = await tx.rows(_SQL["statistics"], list(commit_ids), column)
    return {commit_id: [FileStatistics(*file) for file in files or ()] for commit_id, files in rows}


async def sizes(tx: Transaction, generation_ids: Sequence[UUID]) -> dict[UUID, GenerationSize]:
    rows = await tx.rows(_SQL["sizes"], list(generation_ids))
    return {
        r["generation_id"]: GenerationSize(r["commits"], r["rows"], r["bytes"], r["at_most"]) for r in rows
    }


async def neighbours(tx: Transaction, generation_ids: Sequence[UUID]) -> list[Neighbour]:
    return [
        Neighbour(
            dag=row["dag"],
            job=row["job"],
            operator=row["operator"],
            writes=row["writes"],
            output=row["output"],
            config=row["config"] or {},
            virtual_inputs=[
                VirtualInput(used["name"], used["dataset_id"]) for used in row["virtual_inputs"] or ()
            ],
        )
        for row in await tx.rows(_SQL["producers"], list(generation_ids))
    ]


async def read_by(tx: Transaction, org: str, dataset_id: str) -> list[str]:
    """Jobs that read a virtual dataset, as dag/job."""
    return [f"{row['dag']}/{row['job']}" for row in await tx.rows(_SQL["read_by"], org, dataset_id)]


async def inputs_of(tx: Transaction, generation_id: UUID) -> list[ProducerInput]:
    return [
        ProducerInput(row["name"], row["dataset_id"], [c["name"] for c in row["columns"] or ()])
        for row in await tx.rows(_SQL["inputs_of"], generation_id)
    ]
