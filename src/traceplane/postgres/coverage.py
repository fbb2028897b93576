"""Which positions generations have: stored in the commit's transaction, and checked before one replaces another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane.model.dag import InputRole
from traceplane.model.edges import What, can_map, overlapping
from traceplane.model.json_object import JsonObject
from traceplane.model.partitions import NAMES_WRITTEN, Partitions
from traceplane.model.positions import Range, common, merged, without
from traceplane.operators import catalog
from traceplane.postgres import dataset_retention
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.registry import job_payloads, partitions_of

_SQL = statements("coverage")
_RANGES_TOLD = 20


@dataclass(frozen=True, slots=True)
class Lacking:
    """Positions of a dataset that readers have now and would lose in a cutover."""

    dataset_id: str
    positions: Range
    scope: str
    """The positions, as people write them."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    job_id: UUID
    generation_id: UUID
    building: bool
    routed: bool


async def add(tx: Transaction, task_ids: Sequence[UUID], outputs: Sequence[OutputCommit]) -> None:
    """Records the scopes that these tasks completed, and what they committed."""
    await tx.rows(
        _SQL["add"],
        list(task_ids),
        [o.generation_id for o in outputs],
        [o.start for o in outputs],
        [o.end for o in outputs],
    )


async def lock_serving(tx: Transaction, version_id: UUID) -> None:
    await tx.rows(_SQL["lock_serving"], version_id)


async def lacking(tx: Transaction, version_id: UUID) -> tuple[Lacking, ...]:
    """The first positions that readers would lose if the version served."""
    return (*await _lacking(tx, version_id), *await _lacking_periods(tx, version_id))


async def _lacking(tx: Transaction, version_id: UUID) -> tuple[Lacking, ...]:
    rows = await tx.rows(_SQL["lacking"], version_id, _RANGES_TOLD, NAMES_WRITTEN)
    lacking = []
    for row in rows:
        positions = row["first"], row["last"]
        scope = partitions_of(row["partitions"], row["names"]).written(positions)
        lacking.append(Lacking(row["dataset_id"], positions, scope))
    return tuple(lacking)


async def _lacking_periods(tx: Transaction, version_id: UUID) -> list[Lacking]:
    """Of datasets that get other periods: the new ones that they lack for what is served. A period that the inputs have
    nothing for is not lacking, although it may begin within a served one."""
    lacking: list[Lacking] = []
    for row in await tx.rows(_SQL["replaced_periods"], version_id):
        old = partitions_of(row["partitions"], row["names"])
        new = partitions_of(row["new_partitions"])
        served: list[Range] = [(first, last) for first, last in row["served"]]
        if row["job_id"] is None or not can_map(old, new):
            lacking += [Lacking(row["dataset_id"], r, old.written(r)) for r in served[:_RANGES_TOLD]]
            continue
        owed = merged(overlapping(r, old, new) for r in served)
        owed = without(owed, [(first, last) for first, last in row["held"]])
        if owed and (inputs := await _of_inputs(tx, row["job_id"])) is not None:
            owed = common(owed, inputs)
        lacking += [Lacking(row["dataset_id"], r, new.written(r)) for r in owed[:_RANGES_TOLD]]
    return lacking


async def _of_inputs(tx: Transaction, job_id: UUID) -> list[Range] | None:
    """The scopes of a job that its inputs have, or had, something for; None if that cannot be said."""
    (job,) = await job_payloads(tx, [job_id])
    if not job.inputs:  # a source
        return None
    edges = [
        (i.row_generation_id, edge)
        for i, edge in job.edges()
        if i.role is not InputRole.TRIGGERS and edge.read.what is What.SCOPE
    ]
    if any(edge.read.time_column is not None or not can_map(edge.input, edge.job) for _, edge in edges):
        return None
    rows = await tx.rows(_SQL["had_positions"], [generation_id for generation_id, _ in edges])
    had: dict[UUID, list[Range]] = {r["generation_id"]: [(a, b) for a, b in r["had"]] for r in rows}
    return merged(
        overlapping(positions, edge.input, edge.job)
        for generation_id, edge in edges
        for positions in had.get(generation_id, [])
    )


# Catching up ---------------------------------------------------------------------------------------


async def add_catch_ups(tx: Transaction, version_id: UUID) -> None:
    """Makes the version's jobs catch up on everything that serves now; called before its pointers are moved."""
    await tx.rows(_SQL["add_catch_ups"], version_id)


async def forget_catch_ups(tx: Transaction, job_ids: Sequence[UUID], version_id: UUID | None = None) -> None:
    await tx.rows(_SQL["forget_catch_ups"], list(job_ids), version_id)


async def next_catch_ups(tx: Transaction) -> list[CatchUp]:
    return await tx.rows_as(CatchUp, _SQL["next_catch_ups"])


async def catch_up(tx: Transaction, due: CatchUp, limit: int) -> int:
    """Creates tasks for what a job lacks of a generation; returns their number."""
    unreadable = await dataset_retention.not_computable(tx, due.job_id)
    row = await tx.row(
        _SQL["catch_up"],
        due.job_id,
        due.generation_id,
        limit,
        [first for first, _ in unreadable],
        [last for _, last in unreadable],
    )
    assert row is not None
    if not row["lacks"] and not due.building:
        await tx.rows(_SQL["end_catch_up"], due.job_id, due.generation_id)
    return int(row["made"])


# Looking -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Coverage:
    first: int | None
    last: int | None
    gap_count: int
    gaps: tuple[Range, ...]
    """The first of them."""
    dead: int
    """Scopes whose task is dead and that nothing else covers."""
    partitions: Partitions
    dropped: Range | None = None
    """From the first to the last position that was dropped because of its age."""
    dropped_ranges: int = 0
    """How many ranges that is; between them is what the dataset never had."""
    dropped_names: tuple[str, ...] = ()
    """Of partitions by name: the first of those that were dropped."""
    dropped_count: int = 0
    """How many positions were dropped."""


async def of_datasets(tx: Transaction, org: str, names: list[str] | None = None) -> dict[str, Coverage]:
    async with tx.planned_for_its_values():
        rows = await tx.rows(_SQL["of_datasets"], org, names, _RANGES_TOLD, NAMES_WRITTEN)
    return {
        r["dataset_id"]: Coverage(
            r["first"],
            r["last"] if r["first"] is not None else None,
            r["gap_count"],
            tuple((a, b) for a, b in r["gaps"]),
            r["dead"],
            partitions_of(r["partitions"]),
            tuple(r["dropped"]) if r["dropped"] is not None else None,
            r["dropped_ranges"],
            tuple(r["dropped_names"] or ()),
            r["dropped_count"] or 0,
        )
        for r in rows
    }


@dataclass(frozen=True, slots=True)
class Producer:
    """The job that produces a dataset."""

    job_id: UUID
    dag: str
    job: str
    activation: str
    source_kind: str | None
    runtime: str
    operator: str | None
    range_size: int | None
    """Of an operator that writes ranges of one size."""


@dataclass(frozen=True, slots=True)
class MissingPositions:
    dataset_id: str
    missing: tuple[Range, ...]
    producer: Producer | None
    begins: int | None
    """The first position that it has."""
    partitions: Partitions
    dropped: tuple[Range, ...] = ()
    """Because of their age; not among the missing ones."""


async def missing_positions(
    tx: Transaction, org: str, dataset_id: str, positions: Range
) -> MissingPositions | None:
    """The positions that a dataset lacks, and the job that produces it; None if there is no such dataset."""
    row = await tx.row(_SQL["missing_positions"], org, dataset_id, *positions)
    if row is None:
        return None
    producer = None
    if row["job_id"] is not None:
        producer = Producer(
            row["job_id"],
            row["dag"],
            row["job"],
            row["activation"],
            row["source_kind"],
            row["runtime"],
            row["operator"],
            _range_size(row["operator"], row["config"]),
        )
    return MissingPositions(
        dataset_id,
        tuple((a, b) for a, b in row["missing"] or ()),
        producer,
        row["begins"],
        partitions_of(row["partitions"], row["names"]),
        tuple((a, b) for a, b in row["dropped"] or ()),
    )


def _range_size(operator: str, config: JsonObject) -> int | None:
    spec = catalog.find(operator)
    return None if spec is None or spec.range_size_field is None else config.get(spec.range_size_field)


@dataclass(frozen=True, slots=True)
class ScopeTask:
    task_id: UUID
    state: str
    scope: str
    first: int
    """Position of its scope."""
    code: str | None
    """Of its error."""


async def unfinished(tx: Transaction, job_id: UUID, positions: Range, limit: int) -> list[ScopeTask]:
    return await tx.rows_as(ScopeTask, _SQL["unfinished"], job_id, *positions, limit)


async def finding_scopes(tx: Transaction, job_id: UUID, positions: Range) -> list[ScopeTask]:
    return await tx.rows_as(ScopeTask, _SQL["finding_scopes"], job_id, *positions)


async def corrections(tx: Transaction, job_id: UUID, positions: Range, limit: int) -> list[ScopeTask]:
    """Tasks that have yet to replace rows of these positions, or failed to."""
    return await tx.rows_as(ScopeTask, _SQL["corrections"], job_id, *positions, limit)


async def canceled(tx: Transaction, job_id: UUID, positions: Range, limit: int) -> list[ScopeTask]:
    return await tx.rows_as(ScopeTask, _SQL["canceled"], job_id, *positions, limit)


async def forget(tx: Transaction, generation_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["forget"], list(generation_ids))
