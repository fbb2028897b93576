"""Commits what waits in the buffers of datasets: rows, cursor, events and the end of the task, in one transaction.

Each dataset has its own buffer, worked on by one sink at a time, in the order in which attempts completed. Rows that
can never be written become a dead letter, whole: the task is dead, others go on, and the staged files stay until
somebody replays or drops them. Whatever may be over soon, such as an object store that does not answer, is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID, uuid4

from msgspec import structs

from traceplane import telemetry
from traceplane.dispatcher.leases.buffered import completion_of
from traceplane.dispatcher.leases.calls import CompletionCall
from traceplane.dispatcher.leases.complete import Reports
from traceplane.dispatcher.leases.judged import Judged
from traceplane.errors import DatabaseUnavailable
from traceplane.model.task import Report, ReportVerdict
from traceplane.postgres import buffers
from traceplane.postgres.buffers import BufferedReport
from traceplane.postgres.database import Database, Transaction
from traceplane.runtime.process import Outcome, describe
from traceplane.wire.tasks import TaskError

_LEASE = timedelta(seconds=5)
_MOST_REPORTS = 200
_MOST_BYTES = 8 << 20
"""Of staged files in one transaction, beyond the first report. Not more, because the rows of the next transaction are
read while this one is written."""
_MOST_TRIES = 10


@dataclass(frozen=True, slots=True)
class Written(Outcome):
    reports: int = 0
    dead: int = 0
    postponed: int = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one transaction writes."""

    reports: Sequence[BufferedReport]
    calls: asyncio.Task[list[CompletionCall]]
    """Their completions, with their rows as soon as these are read."""

    async def drop(self) -> None:
        await asyncio.wait([self.calls])
        if self.calls.exception() is None:
            for call in self.calls.result():
                for rows in call.rows:
                    rows.close()


class Sinks:
    """Each dataset is written by a task of its own, so none waits for another's rows."""

    def __init__(self, database: Database, reports: Reports) -> None:
        self._database = database
        self._reports = reports
        self._holder = uuid4()
        self._writing: dict[UUID, asyncio.Task[None]] = {}
        self._written = Written()
        """Since the last pass."""

    async def run_once(self) -> Written:
        """Starts to write those datasets that have something to write, and keeps the leases of those being written."""
        async with self._database.statement("sink_lease") as tx:
            generations = await buffers.lease(tx, self._holder, _LEASE)
        for generation in generations:
            if generation not in self._writing:
                writing = asyncio.create_task(self._serve(generation))
                self._writing[generation] = writing
                writing.add_done_callback(partial(self._end, generation))
        written, self._written = self._written, Written()
        return written

    def _end(self, generation: UUID, _: asyncio.Task[None]) -> None:
        del self._writing[generation]

    async def finish(self) -> None:
        """Waits for what is being written, and lets other sinks take over."""
        await asyncio.gather(*self._writing.values())
        with contextlib.suppress(DatabaseUnavailable):
            async with self._database.autocommit() as tx:
                await buffers.release(tx, self._holder)

    async def _serve(self, generation: UUID) -> None:
        """Until nothing waits: while Postgres writes the rows of one batch, those of the next are read. If that fails,
        the next pass starts again."""
        batch: _Batch | None = None
        following: _Batch | None = None
        try:
            while batch := following or await self._next(generation):
                following = None
                await asyncio.wait([batch.calls])
                following = await self._next(generation, batch.reports)
                await self._write(batch)
        except Exception as error:
            telemetry.emit("sink.failed", "error", generation=str(generation), **describe(error))
            for unwritten in (batch, following):
                if unwritten is not None:
                    await unwritten.drop()

    async def _next(self, generation: UUID, in_hand: Sequence[BufferedReport] = ()) -> _Batch | None:
        """The next that wait, whose rows are being read; None if nothing waits."""
        tasks = [report.fence.task_id for report in in_hand]
        async with self._database.autocommit() as tx:
            reports = _first(await buffers.waiting(tx, generation, self._holder, _MOST_REPORTS, tasks))
        return self._read(reports) if reports else None

    def _read(self, reports: Sequence[BufferedReport]) -> _Batch:
        reading = self._reports.with_rows([completion_of(report) for report in reports])
        return _Batch(reports, asyncio.create_task(reading))

    async def _write(self, batch: _Batch) -> None:
        try:
            await self._write_all(batch)
        except DatabaseUnavailable:
            raise
        except Exception as error:  # of one report, but it is unknown of which
            telemetry.emit("sink.one_by_one", "warning", reports=len(batch.reports), **describe(error))
            for report in batch.reports:
                try:
                    await self._write_all(self._read([report]))
                except DatabaseUnavailable:
                    raise
                except Exception as own:
                    await self._postpone_or_end(report, own)

    async def _postpone_or_end(self, report: BufferedReport, error: Exception) -> None:
        failure = TaskError("sink.failed", f"the sink could not write the rows: {error}"[:2000])
        if report.tries < _MOST_TRIES:
            await self._postpone({report.fence.task_id: failure})
        else:
            await self._commit([completion_of(report).failed(failure)])

    async def _write_all(self, batch: _Batch) -> None:
        calls = await batch.calls
        tries = {report.fence.task_id: report.tries for report in batch.reports}
        later = {
            call.fence.task_id: call.error
            for call in calls
            if call.error is not None and call.error.retryable and tries[call.fence.task_id] < _MOST_TRIES
        }
        if later:
            await self._postpone(later)
        if now := [call for call in calls if call.fence.task_id not in later]:
            await self._commit(now)

    async def _commit(self, calls: Sequence[CompletionCall]) -> None:
        dead = 0

        async def settle(tx: Transaction, judged: Sequence[Judged]) -> None:
            nonlocal dead
            died = {j.call.fence: j.call.error for j in judged if j.verdict is ReportVerdict.DIE}
            dead = len(died)
            over = [j.call.fence for j in judged if j.call.fence not in died]
            await buffers.settle(
                tx, over, {fence: error for fence, error in died.items() if error is not None}
            )

        await self._reports.commit([_final(call) for call in calls], settle)
        self._count(reports=len(calls) - dead, dead=dead)

    def _count(self, reports: int = 0, dead: int = 0, postponed: int = 0) -> None:
        telemetry.count("sink_reports_total", reports)
        telemetry.count("sink_dead_letters_total", dead)
        before = self._written
        self._written = Written(before.reports + reports, before.dead + dead, before.postponed + postponed)

    async def _postpone(self, failures: dict[UUID, TaskError]) -> None:
        async with self._database.transaction("sink_postpone") as tx:
            await buffers.postpone(tx, failures)
        self._count(postponed=len(failures))


def _first(waiting: Sequence[BufferedReport]) -> list[BufferedReport]:
    """As many as one transaction should write."""
    sizes = (sum(output["bytes"] for output in report.report["outputs"]) for report in waiting)
    sums = itertools.accumulate(sizes)
    return [report for report, size in zip(waiting, sums, strict=True) if size <= _MOST_BYTES] or list(
        waiting[:1]
    )


def _final(call: CompletionCall) -> CompletionCall:
    """A failure of the sink is the end of its task, whose rows would be the same if it ran again."""
    if call.report is not Report.FAILED or call.error is None or not call.error.retryable:
        return call
    return call.failed(structs.replace(call.error, retryable=False))
