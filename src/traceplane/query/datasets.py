"""The datasets of a query, read in one snapshot, and the parts that the caller may see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from traceplane.auth.rights import Subject, access_of, may_read
from traceplane.errors import Conflict, InvalidInput, NotFound, UserError
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.near_names import nearest
from traceplane.postgres import pinned, registry, versions
from traceplane.postgres.database import Transaction
from traceplane.postgres.pinned import PinnedDataset
from traceplane.sql import virtual
from traceplane.sql.gate import Moment, Relation
from traceplane.sql.virtual import Expanded


@dataclass(frozen=True, slots=True)
class QueryCaller:
    org: str
    name: str
    role: str
    sees_pii: bool
    roles: frozenset[str] = frozenset()
    datasets: tuple[str, ...] | None = None
    """Patterns of the datasets that the caller's token is cut down to; None: all."""
    counted_as: str | None = None
    """What queries that run at once are counted by; None: the name."""

    @property
    def share(self) -> str:
        return f"{self.org}/{self.counted_as or self.name}"


@dataclass(frozen=True, slots=True)
class AsOf:
    """The current state, or the pointer sets of versions of DAGs, or the state at a time."""

    versions: Mapping[str, int]
    at: datetime | None = None


NOW = AsOf({})
_VERSIONS_TOLD = 5

Pin = tuple[str, Moment]
"""A dataset, and the version or time as of which the query reads it."""


@dataclass(frozen=True, slots=True)
class NamedSql:
    """A relation defined by SQL over others."""

    name: str
    sql: str


def pin_of(relation: Relation) -> Pin:
    return relation.dataset_id, relation.as_of


def pin_text(pin: Pin) -> str:
    dataset_id, moment = pin
    return dataset_id if moment is None else f"{dataset_id}@{moment}"


class QueryDatasets:
    """Including virtual datasets and those below them."""

    def __init__(self, tx: Transaction, org: str, as_of: AsOf, *, only_stored: bool = False) -> None:
        """`only_stored`: without the declared columns that no file has, for a reader that takes columns from files."""
        self._tx, self._org, self._as_of, self._only_stored = tx, org, as_of, only_stored
        self._by_pin: dict[Pin, PinnedDataset] = {}
        self._caller: QueryCaller | None = None

    @property
    def by_pin(self) -> Mapping[Pin, PinnedDataset]:
        return self._by_pin

    def of(self, relation: Relation) -> PinnedDataset:
        return self._by_pin[pin_of(relation)]

    def sql_of(self, relation: Relation) -> str | None:
        return self.of(relation).sql

    def hidden_of(self, relation: Relation, caller: QueryCaller) -> frozenset[str]:
        """The columns that the caller may not see."""
        return frozenset() if caller.sees_pii else self.of(relation).pii

    def at(self, pin: Pin) -> datetime | None:
        """The time as of which a dataset is read."""
        moment = pin[1]
        return moment if isinstance(moment, datetime) else None if moment is not None else self._as_of.at

    async def read(self, relations: Iterable[Relation], caller: QueryCaller | None = None) -> None:
        """`caller`: who needs the right to read what the query names; not what virtual datasets read. None: what is
        read is not shown."""
        self._caller = caller
        pending = asked = {pin_of(relation) for relation in relations}
        dags: set[str] = set()
        while pending:
            for moment in {pin[1] for pin in pending}:
                names = [name for name, m in pending if m == moment]
                await self._read_at(moment, names, caller if pending is asked else None)
            dags |= {self._by_pin[pin].dag for pin in pending}
            below = {
                (name, pin[1])
                for pin in pending
                if (sql := self._by_pin[pin].sql) is not None
                for name in virtual.reads(sql)
            }
            pending = below - self._by_pin.keys()
        if caller is not None and not caller.sees_pii:
            marked = await pinned.with_marks(self._tx, self._by_pin.values())
            self._by_pin = dict(zip(self._by_pin, marked, strict=True))
        if unused := set(self._as_of.versions) - dags:
            raise InvalidInput(
                "query.version_of_nothing",
                "a version is given for a DAG that the query does not read",
                value=min(unused),
                next_step="leave it out",
            )

    async def _read_at(self, moment: Moment, names: list[str], caller: QueryCaller | None) -> None:
        numbers, at = self._as_of.versions, self.at(("", moment))
        if isinstance(moment, int):
            # A version belongs to the dataset's own DAG, which must be known first.
            now = await pinned.datasets(self._tx, self._org, names)
            numbers = {dataset.dag: moment for dataset in now.values()}
        elif moment is not None:
            numbers = {}
        datasets = await pinned.datasets(self._tx, self._org, names, versions=numbers, at=at)
        for name in names:
            dataset = datasets.get(name)
            if dataset is None or (caller is not None and not may_read_pinned(caller, dataset)):
                raise await self._unknown(name)
            version = numbers.get(dataset.dag)
            if version is not None and dataset.version is None:
                raise await self._no_version(dataset, version)
            if dataset.generation_id is None and version is None and at is None:
                raise await self._not_served(dataset)
            dataset = _checked(dataset, at, version)
            self._by_pin[name, moment] = _without_absent(dataset) if self._only_stored else dataset

    async def _unknown(self, name: str) -> NotFound:
        names = await registry.dataset_names(self._tx, self._org, like=name)
        if self._caller is not None:
            names = (await access_of(self._tx, self._org, self._caller)).readable(names)
        return NotFound(
            "query.unknown_relation",
            "the dataset does not exist, or you have no access to it",
            value=name,
            next_step=nearest(name, names)
            or "see `traceplane datasets`; a name with special characters needs double quotes",
        )

    async def _not_served(self, dataset: PinnedDataset) -> NotFound:
        dag, name = dataset.dag, dataset.dataset_id
        if dataset.version is None:
            problem, step = f"DAG {dag} was deleted, and its datasets with it", "deploy its file again"
        elif last := await pinned.last_version_with(self._tx, self._org, name):
            problem = f"version {dataset.version} of DAG {dag}, which serves, no longer has the dataset"
            problem += f"; version {last.number} had it"
            step = "deploy its job again"
            if last.state == "retired":
                step += f", or return to that version: `traceplane rollback {dag} --to {last.number}`"
        else:
            problem = f"the serving version of DAG {dag} does not have the dataset"
            step = f"deploy {dag}; if it is being built, `traceplane versions {dag}` shows the progress"
        return NotFound("query.nothing_then", problem, value=name, next_step=step)

    async def _no_version(self, dataset: PinnedDataset, version: int) -> NotFound:
        newest = await versions.listing(self._tx, self._org, dataset.dag, _VERSIONS_TOLD)
        numbers = ", ".join(str(v.number) for v in newest)
        return NotFound(
            "query.nothing_then",
            f"DAG {dataset.dag} has no version {version}",
            value=dataset.dataset_id,
            next_step=f"its newest versions are {numbers}; see `traceplane versions {dataset.dag}`"
            if len(newest) > 1
            else f"its only version is {numbers}",
        )

    def views(self, expanded: Expanded, caller: QueryCaller) -> list[NamedSql]:
        """The virtual datasets, without the columns that the caller may not see; those below them do not have these
        either."""
        return self._seen(expanded, caller)[0]

    def hidden_columns(self, expanded: Expanded, caller: QueryCaller) -> Mapping[str, frozenset[str]]:
        """By relation, in lower case; raises if the rows of a virtual dataset depend on some."""
        return self._seen(expanded, caller)[1]

    def _seen(
        self, expanded: Expanded, caller: QueryCaller
    ) -> tuple[list[NamedSql], Mapping[str, frozenset[str]]]:
        relations = (*expanded.stored, *(view.relation for view in expanded.views))
        if caller.sees_pii or not any(self.of(relation).pii for relation in relations):
            views = [NamedSql(view.relation.name, view.sql) for view in expanded.views]
            return views, {relation.name: frozenset() for relation in relations}
        columns = {r.name: [c.name for c in self.of(r).columns] for r in expanded.stored}
        hidden = {r.name: self.of(r).pii for r in expanded.stored}
        views = []
        for view in expanded.views:
            name, own = view.relation.name, self.of(view.relation).pii
            sql, visible, hidden[name] = virtual.without(view, columns, hidden, own)
            columns[name] = [*visible, *hidden[name]]
            views.append(NamedSql(name, sql))
        return views, hidden


Column = tuple[str, str]
"""Its dataset and its name, in lower case."""


async def visible_of(tx: Transaction, caller: QueryCaller, columns: Collection[Column]) -> set[Column]:
    """Of columns of datasets that the caller may read, those that the caller may see."""
    if caller.sees_pii:
        return set(columns)
    names: defaultdict[str, list[str]] = defaultdict(list)
    for dataset_id, column in columns:
        names[dataset_id].append(column)
    datasets = await pinned.datasets(tx, caller.org, sorted(names))
    # Marks are of the columns that are asked for: without rows, a dataset may have no others yet.
    stored = [
        replace(dataset, columns=tuple(SchemaColumn(name, "", True) for name in names[name_of]))
        for name_of, dataset in datasets.items()
        if dataset.sql is None
    ]
    hidden = {dataset.dataset_id: dataset.pii for dataset in await pinned.with_marks(tx, stored)}
    for name_of, dataset in datasets.items():
        if dataset.sql is not None and (of_view := await _hidden_of_virtual(tx, caller, name_of)) is not None:
            hidden[name_of] = of_view
    return {(of, name) for of, name in columns if of in hidden and name not in hidden[of]}


async def _hidden_of_virtual(tx: Transaction, caller: QueryCaller, dataset_id: str) -> frozenset[str] | None:
    """None: all of its columns, since its rows depend on hidden ones or it cannot be read."""
    relation, datasets = Relation("tp_d0", dataset_id), QueryDatasets(tx, caller.org, NOW)
    try:
        await datasets.read([relation], caller)
        return datasets.hidden_columns(virtual.expand([relation], datasets.sql_of), caller)[relation.name]
    except UserError:
        return None


def may_read_pinned(caller: Subject, dataset: PinnedDataset) -> bool:
    """Ranges of an aggregator show the rows of another dataset, and alerts were found in one: the caller must also have
    the right to read it."""
    return all(may_read(caller, *one) for one in ((dataset.dataset_id, dataset.read_roles), *dataset.owners))


def _without_absent(dataset: PinnedDataset) -> PinnedDataset:
    stored = tuple(column for column in dataset.columns if column.name not in dataset.absent)
    return replace(dataset, columns=stored, absent=frozenset())


def visible_columns(dataset: PinnedDataset, caller: QueryCaller) -> list[SchemaColumn]:
    return [c for c in dataset.columns if caller.sees_pii or c.name.lower() not in dataset.pii]


def some_columns(dataset: PinnedDataset, caller: QueryCaller) -> list[SchemaColumn]:
    """The visible columns; there must be at least one."""
    if columns := visible_columns(dataset, caller):
        return columns
    name = dataset.dataset_id
    if dataset.columns:
        problem = "all columns of the dataset are personal data, which you may not see"
        step = "ask for a token issued with --pii"
    elif dataset.source is not None:
        problem = f"the dataset has no rows: it consists of the events of source {dataset.source}"
        step = f"query a dataset that a job computes from it; `traceplane dataset show {name}` names the jobs"
    else:
        problem = "the dataset has no rows yet, and its DAG file declares no columns"
        step = "wait for its first rows, or declare its columns in the DAG file"
    raise Conflict("query.no_columns", problem, value=name, next_step=step)


def _checked(dataset: PinnedDataset, at: datetime | None, version: int | None) -> PinnedDataset:
    name = dataset.dataset_id
    if dataset.generation_id is None:
        raise _nothing_then(name, dataset.dag, at, version)
    if dataset.storage == "postgres" and at is not None:
        raise InvalidInput(
            "query.hot_dataset",
            "the rows of this dataset are in a hot table, which has no history",
            value=name,
            next_step="query its current state, or as of a version",
        )
    collected = dataset.forgotten_until
    if at is not None and collected is not None and at < collected:
        raise Conflict(
            "query.history_gone",
            f"replaced rows of the dataset were deleted up to {collected.isoformat()}",
            value=name,
            next_step="ask for a later time",
        )
    return dataset


def _nothing_then(name: str, dag: str, at: datetime | None, version: int | None) -> NotFound:
    if version is not None:
        problem = f"version {version} of DAG {dag} has no such dataset"
        step = f"see `traceplane versions {dag}`"
    else:
        assert at is not None, "what is not served now was refused before"
        problem, step = f"the dataset did not exist at {at.isoformat()}", "ask for a later time"
    return NotFound("query.nothing_then", problem, value=name, next_step=step)
