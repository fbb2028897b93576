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
from traceplane.dispatcher.leases.complete import Reports
from traceplane.dispatcher.leases.judged import Judged
from traceplane.model.hot_table import HotTable
from traceplane.model.json_object import JsonObject
from traceplane.model.task import Report
from traceplane.postgres import buffers, tasks
from traceplane.postgres.buffers import BufferedReport
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.postgres.events import NewEvent
from traceplane.wire.tasks import BatchOutcome, CompletionOutcome, HotRead, OutputManifest


class Handovers:
    def __init__(self, database: Database, reports: Reports) -> None:
        self._database = database
        self._reports = reports

    async def publish(self, calls: Sequence[BatchCall]) -> list[BatchOutcome]:
        """Batches of a stale or canceled task are not kept."""

        async def once() -> list[BatchOutcome]:
            async with self._database.transaction() as tx:
                held = await tasks.hold_fences(tx, [c.fence for c in calls])
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
        tables = await self._reports.hot_tables(calls, tx)
        reports = []
        for call in calls:
            whole = _with_batches(call, published.get(call.fence.task_id, ()))
            buffered = (o.generation_id for o in call.outputs if is_buffered(o, tables))
            reports.append(BufferedReport(call.fence, next(buffered), _stored(whole)))
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
            row_count=output.row_count + sum(part.row_count for part in parts),
            bytes=output.bytes + sum(part.bytes for part in parts),
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
