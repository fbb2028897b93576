"""Tells a receiver of OpenLineage events what became of tasks, without anything that a task waits for.

Nothing is written when a task changes. One dispatcher at a time follows the tasks by their ids, which grow with time,
and looks a page at a time at those that are not over. What it tells, and that it was told, is known from the database
alone: if the receiver is down, nothing piles up but the ids of tasks that are still to be told of. An event is sent
before it is recorded as sent, so a crash in between sends the same event again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID, uuid4

import msgspec

from traceplane import telemetry
from traceplane.dispatcher.openlineage.events import ENDS, ColumnLineage, EventType, RunFacts, run_event
from traceplane.dispatcher.openlineage.receivers import Receiver
from traceplane.errors import DatabaseUnavailable, PlatformError
from traceplane.model.hidden_values import HiddenValues
from traceplane.model.json_object import JsonObject
from traceplane.postgres import openlineage, personal_data, task_views
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.openlineage import Changed, RunJob, TaskRun, Told, ToldOf, Written
from traceplane.runtime.process import Outcome

_LEASE = timedelta(seconds=60)
_FOLLOWED_AT_ONCE = 10_000
_LOOKED_AT = 20_000
_TOLD_AT_ONCE = 200
_IN_FLIGHT = 16
_MOST_LINEAGES = 1_000
_BEGINNING = UUID(int=0)
_NOT_SENT = "the job handles personal data, so what its code wrote about it is not sent"


@dataclass(frozen=True, slots=True)
class LineageTold(Outcome):
    sent: int = 0
    refused: int = 0
    more: bool = False


@dataclass(slots=True)
class _Facts:
    """Of the tasks of one page, in one snapshot."""

    jobs: dict[UUID, RunJob]
    written: dict[tuple[UUID, UUID], Written]
    pipelines: dict[UUID, str]
    errors: dict[UUID, str]
    lineages: dict[UUID, dict[str, ColumnLineage]] = field(default_factory=dict)


@dataclass(slots=True)
class _Sent:
    told: ToldOf = field(default_factory=ToldOf)
    sent: int = 0
    refused: int = 0
    failure: PlatformError | None = None


class OpenLineage:
    def __init__(
        self, database: Database, receiver: Receiver, *, namespace: str, orgs: Sequence[str] = ()
    ) -> None:
        """`orgs`: whose tasks are told of; none: those of all organizations."""
        self._database, self._receiver = database, receiver
        self._namespace = namespace
        self._orgs = list(orgs) or None
        self._holder = uuid4()
        self._after = _BEGINNING
        self._lineages: dict[tuple[UUID, int, int], dict[str, ColumnLineage]] = {}

    async def run_once(self) -> LineageTold:
        if not await self._is_ours():
            return LineageTold()
        async with self._database.autocommit() as tx:
            _, more_to_follow = await openlineage.follow(tx, self._holder, _FOLLOWED_AT_ONCE, self._orgs)
        async with self._database.snapshot() as tx:
            changed = await openlineage.changed(tx, self._after, _LOOKED_AT, _TOLD_AT_ONCE)
            facts = await _facts(tx, changed)
        telemetry.gauge("openlineage_lag_seconds", changed.lag_seconds)
        facts.lineages = {job.job_id: await self._lineage(job) for job in facts.jobs.values()}
        sent = await self._send(changed.runs, facts)
        if changed.runs:
            async with self._database.transaction() as tx:
                await openlineage.told(tx, self._holder, _LEASE, sent.told)
        telemetry.count("openlineage_events_total", sent.sent, outcome="sent")
        telemetry.count("openlineage_events_total", sent.refused, outcome="refused")
        if sent.failure is not None:
            raise sent.failure
        self._after = changed.next_after or _BEGINNING
        return LineageTold(sent.sent, sent.refused, more=more_to_follow or bool(changed.runs))

    async def finish(self) -> None:
        """Another dispatcher may take over."""
        with contextlib.suppress(DatabaseUnavailable):
            async with self._database.autocommit() as tx:
                await openlineage.release(tx, self._holder)
        await self._receiver.close()

    async def _is_ours(self) -> bool:
        async with self._database.transaction() as tx:
            is_new = await openlineage.lease(tx, self._holder, _LEASE)
            if is_new:  # what has ended by now is not told of; what is under way is
                await openlineage.follow_unfinished(tx, self._orgs)
        return is_new is not None

    async def _lineage(self, job: RunJob) -> dict[str, ColumnLineage]:
        known_as = job.job_id, job.revision, hash(tuple(c.name for i in job.inputs for c in i.columns))
        lineage = self._lineages.get(known_as)
        if lineage is None:
            from traceplane.dispatcher.openlineage.lineage import lineage_of  # the parser of SQL takes memory

            lineage = await asyncio.to_thread(lineage_of, job)
            if len(self._lineages) >= _MOST_LINEAGES:
                self._lineages.clear()
            self._lineages[known_as] = lineage
        return lineage

    async def _send(self, runs: Sequence[TaskRun], facts: _Facts) -> _Sent:
        sent, left = _Sent(), iter(runs)

        async def send_some() -> None:
            for run in left:
                if sent.failure is not None:
                    return
                try:
                    await self._send_run(run, facts, sent)
                except PlatformError as error:
                    sent.failure = error

        await asyncio.gather(*(send_some() for _ in range(_IN_FLIGHT)))
        return sent

    async def _send_run(self, run: TaskRun, facts: _Facts, sent: _Sent) -> None:
        """What is to be told of one run, in its order."""
        job = None if run.job_id is None else facts.jobs.get(run.job_id)
        if job is None:
            sent.told.over.append(run.task_id)
            return
        about = RunFacts(
            job,
            namespace=f"{self._namespace}/{job.org}",
            pipeline=facts.pipelines.get(run.task_id),
            lineage=facts.lineages[job.job_id],
            written={g: of for (task_id, g), of in facts.written.items() if task_id == run.task_id},
            error=facts.errors.get(run.task_id),
        )
        if not run.started:
            await self._send_event(run, "START", about, sent)
        end = None if run.state is None else ENDS.get(run.state)
        if end is None:
            sent.told.runs.append(Told(run.task_id, started=True))
            return
        try:
            await self._send_event(run, end, about, sent)
        except PlatformError:
            sent.told.runs.append(Told(run.task_id, started=True))
            raise
        if run.state == "completed" and job.source_kind != "always_on":
            sent.told.over.append(run.task_id)
        else:  # it may run again
            sent.told.runs.append(Told(run.task_id, started=False, ended_at=run.finished_at))

    async def _send_event(self, run: TaskRun, event: EventType, facts: RunFacts, sent: _Sent) -> None:
        status = await self._receiver.send(msgspec.json.encode(run_event(run, event, facts)))
        if status is None:
            sent.sent += 1
            return
        if not sent.refused:
            telemetry.emit(
                "openlineage.refused", "warning", task_id=str(run.task_id), what=event, status=status
            )
        sent.refused += 1


async def _facts(tx: Transaction, changed: Changed) -> _Facts:
    runs = changed.runs
    jobs = await openlineage.jobs_of_tasks(tx, list({run.job_id for run in runs if run.job_id is not None}))
    completed = [run.task_id for run in runs if run.state == "completed"]
    return _Facts(
        jobs,
        await openlineage.written(tx, completed) if completed else {},
        await openlineage.executions(tx, [run.task_id for run in runs]) if runs else {},
        await _errors(tx, runs, jobs),
    )


async def _errors(tx: Transaction, runs: Sequence[TaskRun], jobs: dict[UUID, RunJob]) -> dict[UUID, str]:
    """Without the values that the operators were handed, which errors often repeat, and without the messages of jobs
    that handle personal data: a receiver has no rights of its own, so it is told what everybody may know."""
    failed: defaultdict[str, list[tuple[TaskRun, RunJob]]] = defaultdict(list)
    for run in runs:
        if run.error is not None and run.job_id in jobs:
            job = jobs[run.job_id]
            failed[job.org].append((run, job))
    told: dict[UUID, str] = {}
    for org, of_org in failed.items():
        touched = await personal_data.touched_by(tx, org, {(job.dag, job.job) for _, job in of_org})
        errors = {
            run.task_id: _error_text(run.error or {}, is_told=(job.dag, job.job) not in touched)
            for run, job in of_org
        }
        for row in await task_views.handed_values(tx, org, list(errors)):
            hidden = HiddenValues([row.config, row.parameters])
            errors.update({task_id: hidden.without(errors[task_id]) for task_id in row.task_ids})
        told |= errors
    return told


def _error_text(error: JsonObject, *, is_told: bool) -> str:
    return f"{error.get('code')}: {error.get('message') if is_told else _NOT_SENT}"
