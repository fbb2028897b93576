"""Tasks, as people look at them and look after them.

Tasks are meant by their ids, or as those of a DAG, of one of its jobs, of a range of positions. The second may be very
many: a call changes some of them and says whether there are more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypeVar
from uuid import UUID

from traceplane.auth.callers import Caller
from traceplane.auth.rights import Access, access_of, with_personal_data
from traceplane.errors import Forbidden, InvalidInput, NotFound
from traceplane.gateway import partition_names as names
from traceplane.gateway.hidden_values import hidden_from
from traceplane.gateway.refused_names import unknown_dag_or_job
from traceplane.http_service.routes import Call, Route
from traceplane.model.advice import Advice, advice
from traceplane.model.explain import ExplainFacts, Reason, explain, failed_check
from traceplane.model.hidden_values import HiddenValues
from traceplane.model.json_object import JsonObject
from traceplane.model.stuck import stuck
from traceplane.operators import catalog
from traceplane.postgres import (
    aggregator,
    check_failures,
    events,
    task_attempts,
    task_logs,
    task_views,
    tasks,
    workers,
)
from traceplane.postgres.aggregator import BatchManifest
from traceplane.postgres.buffers import DeadLetter
from traceplane.postgres.check_failures import CheckFailure
from traceplane.postgres.database import Transaction, retry_on_conflict
from traceplane.postgres.task_attempts import EndedAttempt
from traceplane.postgres.task_views import DeadTasks, LineageEvent, ListedTask, SeenDataset
from traceplane.postgres.tasks import TaskFilter
from traceplane.wire.control import (
    AttemptLog,
    AttemptView,
    ExplainResponse,
    FailureView,
    LineageView,
    ReasonView,
    StuckView,
    TaskChanges,
    TaskDetail,
    TaskLogs,
    TaskQuery,
    TaskSelection,
    TasksResponse,
    TaskView,
    WholeReadView,
)

READER, WRITER = "reader", "writer"
CHANGED_AT_ONCE = 2_000
_LOGGED_ATTEMPTS = 100
_LOOKED_AT_PER_JOB = 50
_RANGES_TOLD = 20

Choose = Callable[[Transaction, TaskFilter], Awaitable[list[UUID]]]
"""The tasks of a DAG that a change is for."""
Change = Callable[[Transaction, Sequence[UUID]], Awaitable[dict[UUID, str]]]
"""Returns the new states of those that changed."""
WhyUnchanged = Callable[[Transaction, str, Sequence[UUID]], Awaitable[Mapping[UUID, str | None]]]


class TaskApi:
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/tasks", None, TasksResponse, self.listing, READER, "Tasks, newest first.",
                  query=TaskQuery),
            Route("GET", "/api/v1/tasks/{task_id}", None, TaskDetail, self.task, READER, "One task with its lineage."),
            Route("GET", "/api/v1/tasks/{task_id}/explain", None, ExplainResponse, self.explain, READER,
                  "Why a task waits, or failed."),
            Route("GET", "/api/v1/tasks/{task_id}/logs", None, TaskLogs, self.logs, READER, "What a task wrote."),
            Route("POST", "/api/v1/tasks/retry", TaskSelection, TaskChanges, self.retry, WRITER,
                  "Start dead or canceled tasks again."),
            Route("POST", "/api/v1/tasks/cancel", TaskSelection, TaskChanges, self.cancel, WRITER, "Stop tasks."),
            Route("POST", "/api/v1/tasks/acknowledge", TaskSelection, TaskChanges, self.acknowledge, WRITER,
                  "Dead tasks that need nobody any more."),
        ]  # fmt: skip

    # Looking ---------------------------------------------------------------------------------------

    async def listing(self, call: Call[None]) -> TasksResponse:
        query: TaskQuery = call.query
        async with call.principal.database.transaction() as tx:
            access = await access_of(tx, call.principal.org, call.principal)
            start, end = await names.ends(
                tx, call.principal.org, query.dag, query.job, query.start, query.end, access
            )
            rows = await task_views.listing(
                tx,
                call.principal.org,
                dag=query.dag,
                job=query.job,
                state=query.state,
                before=query.before,
                standing=query.standing,
                start=start,
                end=end,
                limit=query.limit,
                without=access.hidden_ids,
            )
            if not rows:
                await refuse_unknown(tx, call.principal.org, query.dag, query.job, access)
            rows = await as_seen_by(tx, call.principal, rows, access)
        return TasksResponse([_task_view(row) for row in rows])

    async def task(self, call: Call[None]) -> TaskDetail:
        task_id = task_id_of(call)
        async with call.principal.database.transaction() as tx:
            access = await access_of(tx, call.principal.org, call.principal)
            rows = await task_views.listing(
                tx, call.principal.org, task_id=task_id, limit=1, without=access.hidden_ids
            )
            rows = await as_seen_by(tx, call.principal, rows, access)
            lineage = await task_views.lineage(tx, call.principal.org, task_id)
            seen = await task_views.whole_reads(tx, call.principal.org, task_id)
            ended = await task_attempts.of_task(tx, call.principal.org, task_id)
        if not rows:
            raise no_task(task_id)
        views: dict[str, list[LineageView]] = {"input": [], "output": []}
        for row in filter(lambda row: access.reads(row.dataset_id), lineage):
            views[row.side].append(
                LineageView(
                    row.event_id,
                    row.dataset_id,
                    row.kind,
                    scope_text(row) or "",
                    row.producer_id,
                )
            )
        reads = [
            WholeReadView(
                r.dataset_id, r.commit_id, r.committed_at.isoformat() if r.committed_at else None, r.newer
            )
            for r in seen
            if access.reads(r.dataset_id)
        ]
        return TaskDetail(
            _task_view(rows[0]), views["input"], views["output"], reads, _attempts(rows[0], ended)
        )

    async def explain(self, call: Call[None]) -> ExplainResponse:
        task_id, org = task_id_of(call), call.principal.org
        async with call.principal.database.transaction() as tx:
            access = await access_of(tx, org, call.principal)
            facts = await task_views.explain_facts(tx, org, task_id)
            if facts is None or not access.sees(facts.dag, facts.job):
                raise no_task(task_id)
            access = await with_personal_data(tx, call.principal, access, [(facts.dag, facts.job)])
            (facts,) = await as_seen_by(tx, call.principal, [facts], access)
            is_told = access.is_told(facts.dag, facts.job)
            written = await self._logs(tx, call.principal, task_id, attempts=1) if is_told else []
            seen = await task_views.whole_reads(tx, org, task_id)
            batch = await aggregator.batch_of_task(tx, org, task_id)
            failures = await check_failures.of_task(tx, org, task_id) if is_told else []
            shown = batch is not None and access.reads(batch.dataset_id)
            collected = [await _of_batch(tx, org, batch)] if batch is not None and shown else []
        advised = _advice(facts)
        return ExplainResponse(
            task_id,
            facts.state,
            facts.job,
            [ReasonView(r.code, r.sentence) for r in (*explain(facts), *map(_of_check, failures))]
            + [_of_read(r) for r in seen if access.reads(r.dataset_id)]
            + collected,
            dag=facts.dag,
            scope=scope_text(facts),
            error=facts.error,
            log=written[0] if written else None,
            next_step=advised.next_step if advised else None,
            retry_helps=advised.retry_helps if advised else None,
        )

    async def logs(self, call: Call[None]) -> TaskLogs:
        task_id, org = task_id_of(call), call.principal.org
        async with call.principal.database.transaction() as tx:
            access = await access_of(tx, org, call.principal)
            rows = await task_views.listing(tx, org, task_id=task_id, limit=1, without=access.hidden_ids)
            if not rows:
                raise no_task(task_id)
            access = await with_personal_data(tx, call.principal, access, [(rows[0].dag, rows[0].job)])
            if not access.is_told(rows[0].dag, rows[0].job):
                raise output_not_told(rows[0].job)
            written = await self._logs(tx, call.principal, task_id, attempts=_LOGGED_ATTEMPTS)
        return TaskLogs(task_id, rows[0].state, rows[0].attempt, written)

    async def _logs(
        self, tx: Transaction, caller: Caller, task_id: UUID, *, attempts: int
    ) -> list[AttemptLog]:
        """What the last attempts wrote, without values that the caller may not see."""
        rows = await task_logs.of_task(tx, caller.org, task_id, attempts=attempts)
        hidden = (await hidden_from(tx, caller, [task_id])).get(task_id) if rows else None
        return [
            AttemptLog(
                row.attempt,
                hidden.without(row.text) if hidden else row.text,
                row.written_at.isoformat(),
            )
            for row in rows
        ]

    # Changing --------------------------------------------------------------------------------------

    async def retry(self, call: Call[TaskSelection]) -> TaskChanges:
        org, asked = call.principal.org, call.body

        async def choose(tx: Transaction, task_filter: TaskFilter) -> list[UUID]:
            if asked.state == "canceled":
                return await tasks.choose_canceled(tx, org, task_filter, CHANGED_AT_ONCE, after=asked.after)
            return await tasks.choose_dead(tx, org, task_filter, CHANGED_AT_ONCE, to_retry=True)

        async def change(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, str]:
            return dict.fromkeys(await tasks.retry(tx, org, task_ids), "queued")

        return await change_tasks(call.principal, asked, choose, change)

    async def cancel(self, call: Call[TaskSelection]) -> TaskChanges:
        org = call.principal.org

        async def choose(tx: Transaction, task_filter: TaskFilter) -> list[UUID]:
            return await tasks.choose_unfinished(tx, org, task_filter, CHANGED_AT_ONCE)

        async def change(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, str]:
            changed = await tasks.cancel(tx, org, task_ids)
            return {t: "canceling" if s == "running" else s for t, s in changed.items()}

        return await change_tasks(call.principal, call.body, choose, change)

    async def acknowledge(self, call: Call[TaskSelection]) -> TaskChanges:
        org, by = call.principal.org, call.principal.name

        async def choose(tx: Transaction, task_filter: TaskFilter) -> list[UUID]:
            return await tasks.choose_dead(tx, org, task_filter, CHANGED_AT_ONCE, to_retry=False)

        async def change(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, str]:
            return dict.fromkeys(await tasks.acknowledge(tx, org, task_ids, by), "acknowledged")

        return await change_tasks(call.principal, call.body, choose, change)


async def change_tasks(
    caller: Caller,
    asked: TaskSelection,
    choose: Choose,
    change: Change,
    why_unchanged: WhyUnchanged = tasks.why_unchanged,
) -> TaskChanges:
    """Changes the tasks that are meant, as far as they are the caller's to change."""
    org, by_id = caller.org, asked.dag is None

    async def once() -> TaskChanges:
        async with caller.database.transaction() as tx:
            access = await access_of(tx, org, caller)
            meant = asked.task_ids
            if asked.dag is not None:
                if asked.job is not None and not access.sees(asked.dag, asked.job):
                    await refuse_unknown(tx, org, asked.dag, asked.job, access)
                access.require_job(asked.dag, asked.job)
                start, end = await names.ends(tx, org, asked.dag, asked.job, asked.start, asked.end, access)
                meant = await choose(tx, TaskFilter(asked.dag, asked.job, start, end))
            elif access.fixed_ids:
                meant = await _writable(tx, org, meant, access)
            if not meant:
                await refuse_unknown(tx, org, asked.dag, asked.job, access)
            changed = await change(tx, meant) if meant else {}
            unchanged = [t for t in asked.task_ids if t not in changed] if by_id else []
            known = [t for t in unchanged if t in meant]
            why = await why_unchanged(tx, org, known) if known else {}
            await events.notify_dispatchers(tx)
        return TaskChanges(
            {str(t): s for t, s in changed.items()},
            unchanged,
            after=meant[-1] if not by_id and len(meant) == CHANGED_AT_ONCE else None,
            why_unchanged={str(t): why.get(t) or "unknown" for t in unchanged},
        )

    # An event may have dispatched another task of a scope at the same time.
    return await retry_on_conflict(once)


async def _writable(tx: Transaction, org: str, task_ids: Sequence[UUID], access: Access) -> list[UUID]:
    """Those of the tasks that the caller may see; raises if one of them is not theirs to change."""
    jobs = await task_views.jobs_of(tx, org, task_ids)
    seen = [t for t in task_ids if t not in jobs or access.sees(*jobs[t])]
    for dag, job in {jobs[t] for t in seen if t in jobs}:
        access.require_job(dag, job)
    return seen


# What failed and what is stuck -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """How an organization's tasks stand, what needs somebody first."""

    failed: list[FailureView]
    stuck: list[StuckView]
    counts: dict[str, dict[str, int]]
    """Unfinished tasks: "dag/job" -> state -> number."""
    dead_elsewhere: dict[str, int]
    """Dead tasks that need nobody: superseded or retired."""


async def standing(tx: Transaction, caller: Caller, access: Access, dag: str | None = None) -> Standing:
    unfinished = [r for r in await task_views.counts(tx, caller.org, dag) if access.sees(r.dag, r.job)]
    dead_tasks = await task_views.deaths(tx, caller.org, _LOOKED_AT_PER_JOB, dag)
    deaths = await as_seen_by(tx, caller, [r for r in dead_tasks if access.sees(r.dag, r.job)], access)
    retried = [row.newest_retry for row in unfinished if row.newest_retry is not None]
    newest = {
        task_id: (await task_views.listing(tx, caller.org, task_id=task_id, limit=1))[0]
        for task_id in retried
    }
    seen = {row.task_id: row for row in await as_seen_by(tx, caller, list(newest.values()), access)}
    counts: dict[str, dict[str, int]] = {}
    failed = [_failure(row, "dead", row.tasks, capped=row.capped) for row in deaths if row.standing == "open"]
    for row in unfinished:
        counts.setdefault(f"{row.dag}/{row.job}", {})[row.state] = row.tasks
        if row.newest_retry in seen:
            failed.append(_failure(seen[row.newest_retry], "retrying", row.retrying))
    elsewhere: dict[str, int] = {}
    for dead in deaths:
        if dead.standing != "open":
            elsewhere[dead.standing] = elsewhere.get(dead.standing, 0) + dead.tasks
    waits = stuck(unfinished, await task_views.runtimes_at_work(tx), await workers.there(tx))
    return Standing(failed, [StuckView(s.dag, s.job, s.reason, s.sentence) for s in waits], counts, elsewhere)


def _failure(row: ListedTask | DeadTasks, state: Any, count: int, *, capped: bool = False) -> FailureView:
    error = row.error or {}
    return FailureView(
        dag=row.dag,
        job=row.job,
        state=state,
        tasks=count,
        code=str(error.get("code", "unknown")),
        # An exception's message says little without its class, and may be empty.
        message=": ".join(str(error[part]) for part in ("type", "message") if error.get(part)),
        newest=row.task_id,
        scope=scope_text(row),
        and_more=capped,
    )


def _advice(facts: ExplainFacts) -> Advice | None:
    if facts.state != "dead":
        return None
    error = facts.error or {}
    code, spec = str(error.get("code", "")), catalog.find(facts.operator)
    query = None
    if spec is not None and spec.query_field is not None:
        query = f"`config.{spec.query_field}` of the job {facts.job} in its DAG file"
    return advice(
        code,
        task_id=facts.task_id,
        step=error.get("next_step"),
        raised=error.get("type"),
        own=spec.remedy(code) if spec is not None else None,
        query=query,
        standing=facts.standing or "open",
        code_deployed=facts.code_deployed,
        of_pipeline=facts.source_kind == "pipeline",
    )


def task_id_of(call: Call[None]) -> UUID:
    text = call.path_params["task_id"]
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput("task.bad_id", "a task id is a UUID", value=text) from None


async def refuse_unknown(tx: Transaction, org: str, dag: str | None, job: str | None, access: Access) -> None:
    if (dag or job) and (refusal := await unknown_dag_or_job(tx, org, dag, job, access)):
        raise refusal


def no_task(task_id: UUID) -> NotFound:
    return NotFound(
        "task.unknown",
        "there is no such task",
        value=str(task_id),
        next_step="see `traceplane tasks`; finished tasks are kept for the time of the setting history",
    )


def output_not_told(job: str) -> Forbidden:
    return Forbidden(
        "access.task_output",
        "the job handles data that you may not see, and its code may write about it",
        value=job,
        next_step="ask an admin for the read_roles of what the job reads, and for a role that sees personal data",
    )


Written = TypeVar("Written", ListedTask, DeadTasks, ExplainFacts, DeadLetter)


async def as_seen_by(
    tx: Transaction, caller: Caller, rows: Sequence[Written], access: Access
) -> list[Written]:
    """Rows of tasks, without config values in what their operators wrote if the caller may not see them; without all
    of it if they read something that the caller may not read."""
    written_by = {(row.dag, row.job) for row in rows if _has_output(row)}
    access = await with_personal_data(tx, caller, access, written_by)
    rows = [row if access.is_told(row.dag, row.job) else _untold(row) for row in rows]
    written = [row.task_id for row in rows if _has_output(row)]
    hidden = await hidden_from(tx, caller, written)
    return [_without(row, hidden[row.task_id]) if row.task_id in hidden else row for row in rows]


def _has_output(row: ListedTask | DeadTasks | ExplainFacts | DeadLetter) -> bool:
    return bool(row.error or (isinstance(row, ListedTask) and row.progress))


def without_output(error: JsonObject | None, job: str) -> JsonObject | None:
    return error and {"code": error.get("code"), "message": output_not_told(job).message}


def _untold(row: Written) -> Written:
    error = without_output(row.error, row.job)
    if isinstance(row, ListedTask):
        return replace(row, error=error, progress=None)
    return replace(row, error=error)


def _without(row: Written, hidden: HiddenValues) -> Written:
    if isinstance(row, ListedTask):
        return replace(row, error=hidden.without(row.error), progress=hidden.without(row.progress))
    return replace(row, error=hidden.without(row.error))


def scope_text(row: ListedTask | DeadTasks | ExplainFacts | LineageEvent | DeadLetter) -> str | None:
    if row.range_start is None:
        return None
    return str(row.partition_key if row.partition_key is not None else row.range_start)


def _attempts(task: ListedTask, ended: Sequence[EndedAttempt]) -> list[AttemptView]:
    """The current one is in the task itself. One that was thought lost may have gone on."""
    views = [
        AttemptView(
            a.attempt, a.outcome, a.started_at.isoformat(), a.ended_at.isoformat(), a.worker_id, a.code
        )
        for a in ended
    ]
    if task.started_at is None or task.state not in ("running", "completed"):
        return views
    views = [view for view in views if view.attempt != task.attempt]
    began, over = task.started_at.isoformat(), _time(task.finished_at)
    outcome: Literal["running", "completed"] = "running" if task.state == "running" else "completed"
    return [*views, AttemptView(task.attempt, outcome, began, over, task.worker_id)]


def _time(value: datetime | None) -> str | None:
    return value.isoformat() if value is not None else None


def _of_check(failure: CheckFailure) -> Reason:
    problem = f"{failure.problem} of {failure.dataset_id}"
    return failed_check(failure.name, problem, failure.sample)


def _of_read(seen: SeenDataset) -> ReasonView:
    if seen.commit_id is None:
        return ReasonView("read", f"It read {seen.dataset_id}, which had no rows then.")
    since = ""
    if seen.newer:
        since = f"; {seen.newer} newer {'commit is' if seen.newer == 1 else 'commits are'} there since"
    return ReasonView("read", f"It read {seen.dataset_id} as of commit {seen.commit_id}{since}.")


_WHY_CLOSED = {
    "full": "when all of it had arrived",
    "every": "at its time",
    "all": "when the batch before was done",
    "max_wait": "after max_wait",
    "hand": "by hand",
    "deploy": "by the deploy that removed the batches of its job",
}


async def _of_batch(tx: Transaction, org: str, batch: BatchManifest) -> ReasonView:
    ranges = ", ".join(await names.written(tx, org, batch.partitions, batch.held[:_RANGES_TOLD]))
    more = f" and {len(batch.held) - _RANGES_TOLD} more ranges" if len(batch.held) > _RANGES_TOLD else ""
    return ReasonView(
        "batch",
        f"It is the batch {batch.partition_key} of {batch.dataset_id}, closed {_WHY_CLOSED[batch.closed_by]} at "
        f"{batch.closed_at.isoformat(sep=' ', timespec='seconds')}; it covers {ranges}{more}.",
    )


def _task_view(row: ListedTask) -> TaskView:
    return TaskView(
        task_id=row.task_id,
        dag=row.dag,
        job=row.job,
        state=row.state,
        kind=row.kind,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        created_at=row.created_at.isoformat(),
        scope=scope_text(row),
        priority="backfill" if row.priority else "normal",
        worker_id=row.worker_id,
        started_at=_time(row.started_at),
        finished_at=_time(row.finished_at),
        cancel_requested=row.cancel_requested,
        progress=row.progress,
        error=row.error,
        standing=row.standing,
    )
