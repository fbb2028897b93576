"""Outputs for buffered datasets: published while their task runs, and handed over to a sink when it completes.

A completion that a sink is to commit is stored as it is, in the order of arrival. Its task stays `running`, and its
lease does not expire. So its scope is busy until the rows are there, the dispatch window limits how much waits in a
buffer, and a cutover waits for it, as for every other running task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.dispatcher.leases.calls import BatchCall, CompletionCall
from traceplane.dispatcher.leases.complete import Reports, generations_of
from traceplane.dispatcher.leases.judged import Judged
from traceplane.errors import InvalidInput
from traceplane.model.hot_table import HotTable
from traceplane.model.json_object import JsonObject
from traceplane.model.task import Report
from traceplane.postgres import buffers, tasks
from traceplane.postgres.buffers import BufferedReport
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.postgres.events import NewEvent
from traceplane.wire.tasks import BatchOutcome, CompletionOutcome, HotRead, OutputManifest

_MOST = 2**63 - 1
"""That Postgres holds as a number: counts are the worker's word."""


class Handovers:
    def __init__(self, database: Database, reports: Reports) -> None:
        self._database = database
        self._reports = reports

    async def publish(self, calls: Sequence[BatchCall]) -> list[BatchOutcome]:
        """Batches of a stale, canceled or completed attempt are not kept. Raises InvalidInput for an output without a
        buffer: nobody would look for its rows there."""
        generations = {c.output.dataset_version for c in calls}
        tables = await self._reports.hot_tables(generations)
        for generation in sorted(generations):
            if generation not in tables or not tables[generation].buffered:
                raise InvalidInput(
                    "task.output_not_buffered",
                    "the output is not buffered, so its rows cannot be published while the task runs",
                    value=str(generation),
                    next_step="report them when the task completes",
                )

        async def once() -> list[BatchOutcome]:
            async with self._database.transaction() as tx:
                held = await tasks.hold_fences(tx, [c.fence for c in calls])
                # Its task is held, so it cannot be handed over before these batches are kept.
                completed = await buffers.handed_over(tx, held)
                held = {fence: how for fence, how in held.items() if fence.task_id not in completed}
                kept = [c for c in calls if (fence := held.get(c.fence)) and not fence.cancel_requested]
                await buffers.publish(tx, [(c.fence, c.batch, c.output) for c in kept])
                return [
                    BatchOutcome(
                        c.fence.task_id,
                        c.batch,
                        "ok" if c in kept else "canceled" if c.fence in held else "stale",
                    )
                    for c in calls
                ]

        return await retry_on_conflict(once)

    async def have_published(self, calls: Sequence[CompletionCall]) -> list[bool]:
        """For each completion, whether batches of its outputs were published before."""
        async with self._database.autocommit() as tx:
            published = await buffers.published(tx, [c.fence for c in calls])
        indexes = {
            task_id: {batch.output_index for batch in batches} for task_id, batches in published.items()
        }
        return [any(o.output_index in indexes.get(c.fence.task_id, ()) for o in c.outputs) for c in calls]

    async def hand_over(self, calls: Sequence[CompletionCall]) -> list[CompletionOutcome]:
        """Completions with buffered outputs. What does not complete its attempt is reported as usual."""

        async def once() -> tuple[dict[UUID, CompletionCall], list[CompletionCall]]:
            async with self._database.transaction("hand_over") as tx:
                locked = await tasks.lock(tx, [c.fence.task_id for c in calls])
                judged = [Judged.of(c, locked.get(c.fence.task_id)) for c in calls]
                taken = {j.task_id: j.call for j in judged if j.completes}
                await self._keep(tx, list(taken.values()))
                return taken, [j.call for j in judged if not j.completes]

        taken, others = await retry_on_conflict(once)
        reported = iter(await self._reports.complete(others) if others else ())
        telemetry.count("buffered_reports_total", len(taken))
        return [
            CompletionOutcome(c.fence.task_id, "buffered") if c.fence.task_id in taken else next(reported)
            for c in calls
        ]

    async def _keep(self, tx: Transaction, calls: Sequence[CompletionCall]) -> None:
        if not calls:
            return
        published = await buffers.published(tx, [c.fence for c in calls])
        tables = await self._reports.hot_tables(generations_of(calls), tx)
        reports = []
        for call in calls:
            whole = _with_batches(call, published.get(call.fence.task_id, ()))
            # If a deploy has just made all of them direct, a sink still writes this one.
            hot = [o for o in call.outputs if o.generation_id in tables]
            first = next((o for o in hot if is_buffered(o, tables)), hot[0])
            reports.append(BufferedReport(call.fence, first.generation_id, _stored(whole)))
        await buffers.hand_over(tx, reports)


def is_buffered(output: OutputCommit, tables: Mapping[UUID, HotTable]) -> bool:
    table = tables.get(output.generation_id)
    return table is not None and table.buffered


def _with_batches(call: CompletionCall, batches: Sequence[OutputManifest]) -> CompletionCall:
    """The completion, with what its attempt has published before."""
    if not batches:
        return call

    def whole(output: OutputCommit) -> OutputCommit:
        parts = [batch for batch in batches if batch.output_index == output.output_index]
        return replace(
            output,
            files=[*chain.from_iterable(part.files for part in parts), *output.files],
            row_count=min(_MOST, output.row_count + sum(part.row_count for part in parts)),
            bytes=min(_MOST, output.bytes + sum(part.bytes for part in parts)),
        )

    return replace(call, outputs=tuple(map(whole, call.outputs)))


class _Stored(msgspec.Struct, frozen=True):
    """What a buffer keeps of a completion."""

    outputs: tuple[OutputCommit, ...]
    implied: tuple[NewEvent, ...]
    events: tuple[NewEvent, ...]
    hot_reads: tuple[HotRead, ...]
    seen_commit: int | None
    log: str
    org: str


_FIELDS = _Stored.__struct_fields__


def _stored(call: CompletionCall) -> JsonObject:
    stored: JsonObject = msgspec.to_builtins(_Stored(**{name: getattr(call, name) for name in _FIELDS}))
    return stored


def completion_of(report: BufferedReport) -> CompletionCall:
    stored = msgspec.convert(report.report, _Stored)
    return CompletionCall(report.fence, Report.COMPLETED, **{name: getattr(stored, name) for name in _FIELDS})
