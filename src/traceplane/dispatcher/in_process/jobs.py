"""Takes queued tasks of in-process jobs, runs their operator, accepts its events and ends the tasks."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from traceplane import telemetry
from traceplane.dispatcher.in_process import aggregator, alert_route, scopes, splitter
from traceplane.dispatcher.in_process.operator import InProcessInput, InProcessJob, Misconfigured, Work
from traceplane.errors import PlatformError
from traceplane.model.task import state_after_failure
from traceplane.operators import catalog
from traceplane.postgres import events, registry, tasks
from traceplane.postgres.database import HEALED_BY_REPETITION, Database, Transaction, retry_on_conflict
from traceplane.postgres.events import NewEvent
from traceplane.postgres.registry import JobRow
from traceplane.postgres.tasks import FailedAttempt, QueuedTask
from traceplane.runtime.process import Outcome
from traceplane.wire.tasks import TaskError

_BATCH = 500


@dataclass(frozen=True, slots=True)
class Ran(Outcome):
    completed: int = 0
    failed: int = 0
    emitted: int = 0
    created: int = 0
    more: bool = False

    def __add__(self, other: Ran) -> Ran:
        return Ran(
            self.completed + other.completed,
            self.failed + other.failed,
            self.emitted + other.emitted,
            self.created + other.created,
            self.more or other.more,
        )


class _Raised(Exception):
    """An operator raised; what it wrote is rolled back with everything else of the pass."""

    def __init__(self, job: tasks.WaitingJob, batch: Sequence[QueuedTask]) -> None:
        super().__init__(job.operator)
        self.job = job
        self.batch = batch


@dataclass(slots=True)
class _Suspects:
    """What raised in earlier tries of a pass. Others must not wait for it: the tasks of such a job run one at a time,
    and one that raises then has failed."""

    jobs: set[UUID] = field(default_factory=set)
    failed: dict[UUID, TaskError] = field(default_factory=dict)

    def add(self, raised: _Raised) -> None:
        if len(raised.batch) > 1:
            self.jobs.add(raised.job.job_id)
            return
        error = raised.__cause__
        reason = f"{raised.job.operator}: {type(error).__name__} {error}"
        self.failed[raised.batch[0].task_id] = TaskError("operator.raised", reason)


class InProcess:
    def __init__(self, database: Database, *, work_created: Callable[[], None]) -> None:
        self._database = database
        self._work_created = work_created

    async def run_once(self) -> Ran:
        suspects = _Suspects()
        ran = None
        while ran is None:
            try:
                ran = await retry_on_conflict(functools.partial(self._run, suspects))
            except _Raised as raised:
                suspects.add(raised)
        if ran.created:
            telemetry.count("tasks_created_total", ran.created)
            self._work_created()
        return ran

    async def _run(self, suspects: _Suspects) -> Ran:
        ran = Ran()
        async with self._database.transaction("in_process") as tx:
            for job in await tasks.waiting_jobs(tx, in_process=True):
                if job.operator in catalog.publishing_signals():
                    continue  # it waits on other systems, so it has its own loop
                limit = 1 if job.job_id in suspects.jobs else _BATCH
                if batch := await tasks.take_in_process(tx, job.job_id, limit):
                    ran += await _run_job(tx, job, batch, suspects.failed)
                    ran += Ran(more=len(batch) == limit)
        return ran


async def _run_job(
    tx: Transaction, job: tasks.WaitingJob, batch: Sequence[QueuedTask], failed: Mapping[UUID, TaskError]
) -> Ran:
    if errors := {task.task_id: failed[task.task_id] for task in batch if task.task_id in failed}:
        await fail(tx, job.operator, batch, errors)
        return Ran(failed=len(errors), more=True)
    try:
        return await _run_operator(tx, job, batch)
    except (*HEALED_BY_REPETITION, PlatformError):
        raise
    except Exception as error:
        raise _Raised(job, batch) from error


async def _run_operator(tx: Transaction, job: tasks.WaitingJob, batch: Sequence[QueuedTask]) -> Ran:
    (row,) = await registry.job_payloads(tx, [job.job_id])
    try:
        work = await _OPERATORS[job.operator](tx, definition_of(row), batch)
    except Misconfigured as error:
        failure = TaskError("operator.misconfigured", f"{job.operator}: {error}", retryable=False)
        work = Work([], [], dict.fromkeys((task.task_id for task in batch), failure))
    accepted = await events.accept(tx, work.events)
    if work.completed:
        await tasks.finish_in_process(tx, [task.task_id for task in work.completed])
    if work.next_positions:
        await tasks.keep_next_positions(tx, work.next_positions)
    if work.failed:
        await fail(tx, job.operator, batch, work.failed)
    ended = len(work.completed) + len(work.failed)
    return Ran(
        completed=len(work.completed),
        failed=len(work.failed),
        emitted=sum(1 for event_id in accepted.event_ids if event_id is not None),
        created=accepted.tasks_created,
        more=ended < len(batch) or accepted.tasks_created > 0,
    )


def definition_of(row: JobRow) -> InProcessJob:
    return InProcessJob(
        row.job_id,
        row.definition.config,
        [UUID(output["dataset_version"]) for output in row.outputs],
        [
            InProcessInput(i.input_index, i.generation_id, i.row_generation_id, edge)
            for i, edge in row.edges()
        ],
        row.partitions,
    )


async def fail(
    tx: Transaction, operator: str, batch: Sequence[QueuedTask], errors: Mapping[UUID, TaskError]
) -> None:
    """Ends an attempt of each task of the batch that has an error: it is retried, or dead."""
    for message, count in Counter(error.message for error in errors.values()).items():
        telemetry.emit("in_process.failed", "warning", operator=operator, tasks=count, message=message)
    failed = []
    for task in batch:
        if (error := errors.get(task.task_id)) is not None:
            state = state_after_failure(task.next_attempt, retryable=error.retryable)
            failed.append(FailedAttempt(task.task_id, task.next_attempt.attempt, state, error))
    await tasks.mark_failed(tx, failed, reported=True)


async def _pass_on(tx: Transaction, job: InProcessJob, batch: Sequence[QueuedTask]) -> Work:
    """Repeats every event on each output: connects datasets without a worker."""
    drafts = [
        NewEvent(
            producer_id=task.task_id,
            generation_id=generation,
            kind=task.kind,
            partition_key=task.partition_key,
            start=task.range_start,
            end=task.range_end,
            backfill=task.backfill,
            traceparent=task.traceparent,
        )
        for task in batch
        for generation in job.outputs
    ]
    return Work(drafts, batch)


_OPERATORS = {
    "aggregator": aggregator.run,
    "alert_route": alert_route.run,
    "pass": _pass_on,
    "scopes": scopes.run,
    "splitter": splitter.run,
}
