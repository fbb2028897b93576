"""Jobs, as people look after them: pauses, and batches that are closed by hand."""

from __future__ import annotations

from traceplane import telemetry
from traceplane.auth.callers import Caller
from traceplane.auth.rights import Access, access_of
from traceplane.errors import Conflict, NotFound
from traceplane.gateway import partition_names as names
from traceplane.gateway.refused_names import unknown_dag_or_job
from traceplane.http_service.routes import Call, Route
from traceplane.postgres import aggregator, events, job_pauses
from traceplane.postgres.database import Transaction, retry_on_conflict
from traceplane.postgres.job_pauses import JobPause
from traceplane.wire.jobs import BatchesClosing, JobName, OpenBatch, PauseChange, PauseRequest, PauseView

WRITER = "writer"


class JobApi:
    def routes(self) -> list[Route]:
        return [
            Route("POST", "/api/v1/jobs/pause", PauseRequest, PauseChange, self.pause, WRITER,
                  "Keep the tasks of a job from starting."),
            Route("POST", "/api/v1/jobs/resume", JobName, PauseChange, self.resume, WRITER,
                  "Let the tasks of a paused job start again."),
            Route("POST", "/api/v1/batches/close", JobName, BatchesClosing, self.close_batches, WRITER,
                  "Close the batches of a job that are filling."),
        ]  # fmt: skip

    async def pause(self, call: Call[PauseRequest]) -> PauseChange:
        org, by, asked = call.principal.org, call.principal.name, call.body

        async def once() -> PauseChange:
            async with call.principal.database.transaction() as tx:
                access = await _writable(tx, call.principal, asked.dag, asked.job)
                jobs = await job_pauses.lock_jobs(tx, org, asked.dag, asked.job)
                if not jobs:
                    raise await _not_deployed(tx, org, asked.dag, asked.job, access)
                if all(job.relays_only for job in jobs):
                    raise _relays_only(asked.job, jobs[0].generated_for)
                changed = await job_pauses.pause(
                    tx, org, asked.dag, asked.job, jobs=jobs, by=by, reason=asked.reason
                )
                (held,) = await job_pauses.of_org(tx, org, dag=asked.dag, job=asked.job)
            return PauseChange(changed, pause_view(held))

        answer = await retry_on_conflict(once)
        if answer.changed:
            telemetry.emit("job.paused", dag=asked.dag, job=asked.job, principal=by, reason=asked.reason)
        return answer

    async def resume(self, call: Call[JobName]) -> PauseChange:
        org, by, asked = call.principal.org, call.principal.name, call.body

        async def once() -> PauseChange:
            async with call.principal.database.transaction() as tx:
                access = await _writable(tx, call.principal, asked.dag, asked.job)
                jobs = await job_pauses.lock_jobs(tx, org, asked.dag, asked.job)
                ended = await job_pauses.resume(tx, org, asked.dag, asked.job, jobs=jobs)
                if ended is None and not jobs:
                    raise await _not_deployed(tx, org, asked.dag, asked.job, access)
                await events.notify_dispatchers(tx)
            return PauseChange(ended is not None, pause_view(ended) if ended is not None else None)

        answer = await retry_on_conflict(once)
        if answer.changed:
            telemetry.emit("job.resumed", dag=asked.dag, job=asked.job, principal=by)
        return answer

    async def close_batches(self, call: Call[JobName]) -> BatchesClosing:
        org, by, asked = call.principal.org, call.principal.name, call.body
        closing: list[OpenBatch] = []
        async with call.principal.database.transaction() as tx:
            access = await _writable(tx, call.principal, asked.dag, asked.job)
            found = await aggregator.of_job(tx, org, asked.dag, asked.job)
            if not found:
                raise await unknown_dag_or_job(tx, org, asked.dag, asked.job, access) or Conflict(
                    "job.no_batches",
                    f"the job of {asked.dag} collects no batches",
                    value=asked.job,
                    next_step="name a job with execution_strategy: Bulk, or an aggregator",
                )
            for one in found:
                batches = await aggregator.closable(tx, one.job_id, one.partitions, one.size)
                if batches:
                    await aggregator.close_by_hand(tx, one.job_id)
                scopes = await names.written(tx, org, one.partitions, batches)
                closing += [
                    OpenBatch(one.name, one.dataset_id, first, last, scope)
                    for (first, last), scope in zip(batches, scopes, strict=True)
                ]
            await events.notify_dispatchers(tx)
        if closing:
            telemetry.emit("batches.closed", dag=asked.dag, job=asked.job, principal=by)
        # A version that is being built collects the same batches beside those that serve.
        return BatchesClosing(list({(b.job, b.dataset, b.first, b.last): b for b in closing}.values()))


async def _writable(tx: Transaction, caller: Caller, dag: str, job: str) -> Access:
    """Raises if the job writes something that the caller may not write, or not even read."""
    access = await access_of(tx, caller.org, caller)
    if not access.sees(dag, job):
        raise await _not_deployed(tx, caller.org, dag, job, access)
    access.require_job(dag, job)
    return access


async def _not_deployed(tx: Transaction, org: str, dag: str, job: str, access: Access) -> NotFound:
    return await unknown_dag_or_job(tx, org, dag, job, access) or NotFound(
        "job.unknown",
        f"no deployed version of {dag} has this job",
        value=job,
        next_step="see `traceplane dags`",
    )


def _relays_only(job: str, generated_for: str | None) -> Conflict:
    instead = (
        f"pause {generated_for}, which runs for them" if generated_for else "pause the jobs that read it"
    )
    return Conflict(
        "job.relays_only",
        "the source only passes on the events that it is sent, and has no tasks to keep from starting",
        value=job,
        next_step=instead,
    )


def pause_view(pause: JobPause) -> PauseView:
    return PauseView(
        pause.dag, pause.job, pause.paused_by, pause.since.isoformat(), pause.reason, pause.waiting
    )
