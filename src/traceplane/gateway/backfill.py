"""Backfills: tasks for the scopes of a range that need one and have none under way.

The tasks are made a few thousand at a time, each time in a transaction that locks the job, so that two commands take
turns. Repeating one that broke off continues it: what is done, or under way, is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

from traceplane import telemetry
from traceplane.auth.callers import Caller
from traceplane.auth.rights import access_of
from traceplane.errors import InvalidInput
from traceplane.gateway import partition_names as names
from traceplane.gateway.refused_names import unknown_dataset, virtual_dataset
from traceplane.model import backfill as model
from traceplane.model.dag import InputRole
from traceplane.model.edges import What
from traceplane.model.partitions import By, Partitions
from traceplane.model.positions import Range
from traceplane.model.scope import Scope
from traceplane.postgres import events, registry, tasks
from traceplane.postgres.database import Database, retry_on_conflict
from traceplane.postgres.registry import BackfillTarget, JobRow
from traceplane.postgres.tasks import BackfillCounts, InputGap, Need
from traceplane.wire.control import BackfillRequest, BackfillResponse
from traceplane.wire.deploys import LackingView

_SCOPES_AT_ONCE = 5_000
_GAPS_TOLD = 20


async def backfill(caller: Caller, request: BackfillRequest) -> BackfillResponse:
    database, org = caller.database, caller.org
    async with database.transaction() as tx:
        access = await access_of(tx, org, caller)
        if not access.reads(request.dataset):
            raise await unknown_dataset(tx, org, request.dataset, access)
        target = await registry.backfill_target(tx, org, request.dataset)
        if target is None:
            raise await virtual_dataset(
                tx, org, request.dataset, "backfill what it reads:", access
            ) or await unknown_dataset(tx, org, request.dataset, access)
        access.require_write(request.dataset)
        _check(target, request)
        partitions = await names.with_names(tx, org, target.partitions, request.start, request.end)
        (row,) = await registry.job_payloads(tx, [target.job_id])
    scopes = _scopes(target, request, partitions)
    reads = _Reads(row)
    counts: Counter[str] = Counter()
    for position in range(0, len(scopes), _SCOPES_AT_ONCE):
        chunk = scopes[position : position + _SCOPES_AT_ONCE]
        counts.update(asdict(await _backfill_some(database, target, request, chunk, reads)))
    gaps: list[InputGap] = []
    if counts["left_out"]:
        async with database.transaction() as tx:
            everything = scopes[0].start, scopes[-1].end
            gaps = await tasks.backfill_gaps(tx, reads.ranges(everything), _GAPS_TOLD)
    if not request.dry_run:
        telemetry.emit(
            "backfill.started", dataset=request.dataset, scopes=len(scopes), tasks=counts["created"]
        )
    return BackfillResponse(
        dataset=request.dataset,
        job=target.job,
        scopes=len(scopes),
        created=counts["created"],
        unfinished=counts["unfinished"] + (0 if request.dry_run else counts["created"]),
        missing=counts["missing"],
        failed=counts["failed"],
        left_out=counts["left_out"],
        gaps=tuple(
            LackingView(g.dataset_id, g.first, g.last, reads.written(g))
            for g in gaps
            if access.reads(g.dataset_id)
        ),
    )


class _Reads:
    """What the scopes of a job read of its inputs."""

    def __init__(self, row: JobRow) -> None:
        edges = [edge for i, edge in row.edges() if i.role is not InputRole.TRIGGERS]
        datasets = [i["dataset_id"] for i in row.inputs]
        self._inputs = [
            (generation_id, edge, dataset_id)
            for generation_id, edge, dataset_id in zip(row.row_generations, edges, datasets, strict=True)
            # Which rows a period has is known only from what was committed, so nothing of it can be missing.
            if edge.read.what is What.SCOPE and edge.read.time_column is None
        ]

    def needs(self, scopes: Sequence[Scope]) -> list[Need]:
        return [
            Need(number, generation_id, first, edge.own((scope.start, scope.end))[0], last)
            for number, scope in enumerate(scopes)
            for generation_id, edge, _ in self._inputs
            for first, last in [edge.reads((scope.start, scope.end))]
        ]

    def ranges(self, positions: Range) -> list[tuple[UUID, Range]]:
        return [(generation_id, edge.own(positions)) for generation_id, edge, _ in self._inputs]

    def written(self, gap: InputGap) -> str:
        partitions = {dataset_id: edge.input for _, edge, dataset_id in self._inputs}
        known = partitions.get(gap.dataset_id, Partitions())
        return (known.with_names(gap.names) if gap.names else known).written((gap.first, gap.last))


async def _backfill_some(
    database: Database, target: BackfillTarget, request: BackfillRequest, scopes: list[Scope], reads: _Reads
) -> BackfillCounts:
    async def once() -> BackfillCounts:
        async with database.transaction() as tx:
            if not request.dry_run:
                await tasks.lock_routed_job(tx, target.job_id)
            outcomes = await tasks.backfill(
                tx,
                target.job_id,
                target.generation_id,
                scopes,
                wanted=request.only,
                allow_gaps=request.allow_gaps,
                create=not request.dry_run,
                needs=reads.needs(scopes),
            )
            if not request.dry_run and outcomes.created:
                await events.notify_dispatchers(tx)
            return outcomes

    return await retry_on_conflict(once)


def _check(target: BackfillTarget, request: BackfillRequest) -> None:
    if target.activation == "source":
        raise InvalidInput(
            "backfill.source_dataset",
            f"the dataset is what the source {target.job} emits; there is nothing to compute it from",
            value=request.dataset,
            next_step="backfill a dataset that is computed from it, or emit its events",
        )
    if target.runtime == "dispatcher":
        raise InvalidInput(
            "backfill.no_rows",
            f"the dataset only groups the events of another; {target.job} computes nothing",
            value=request.dataset,
            next_step="backfill the dataset that is read from it, or the one it groups",
        )
    if target.open_batches:
        raise InvalidInput(
            "backfill.open_batches",
            f"job {target.job} is fed with batches that have no fixed size",
            value=request.dataset,
            next_step="backfill the dataset that it reads; batches of it follow",
        )
    if request.partition_size is not None and target.range_size is not None:
        raise InvalidInput(
            "backfill.fixed_size",
            f"job {target.job} is fed with ranges of {target.range_size} positions",
            value=request.partition_size,
            next_step="leave the partition size out",
        )


def _scopes(target: BackfillTarget, request: BackfillRequest, partitions: Partitions) -> list[Scope]:
    if partitions.by is By.NAME:
        start, end = names.positions(partitions, request.start, request.end)
    else:
        start, end = names.position(partitions, request.start), names.position(partitions, request.end)
    # Periods may be rolled up from batches of other periods; names have no ranges.
    batched = not partitions.is_named or (partitions.is_time and target.batched)
    range_size = target.range_size if batched else None
    try:
        return model.scopes(
            start,
            end,
            partition_size=request.partition_size,
            range_size=range_size,
            partitions=partitions,
        )
    except ValueError as error:
        raise InvalidInput(
            "backfill.bad_range",
            f"the range cannot be divided into scopes: {error}",
            value=f"{request.start}..{request.end}",
            next_step=f"give a range A..B of at most {model.MAX_SCOPES} scopes, or larger partitions",
        ) from None
